//! Decides when a session, or its link to the server, has been idle for too long.

use crate::Millis;
use crate::handshake::Handshake;
use crate::lifecycle::Lifecycle;
use crate::mirroring::Mirroring;
use crate::persisted::Persisted;
use crate::posts::Posts;
use crate::server_link::ServerLink;
use crate::server_requests::ServerRequests;
use crate::setup::Setup;
use crate::streams::Streams;

/// The parts of a session that determine whether it, or its link, is idle.
pub(crate) struct IdleTimes<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) lifecycle: &'a Lifecycle,
    pub(crate) handshake: &'a Handshake,
    pub(crate) link: &'a ServerLink,
    pub(crate) posts: &'a Posts,
    pub(crate) streams: &'a Streams,
    pub(crate) server_requests: &'a ServerRequests,
    pub(crate) persisted: &'a Persisted,
    pub(crate) mirroring: &'a Mirroring,
}

impl IdleTimes<'_> {
    /// When the idle session ends.
    pub(crate) fn idle_at(&self) -> Option<Millis> {
        let limits = &self.setup.limits;
        let secs = if self.handshake.awaits_initialized() {
            limits.handshake_secs.min(limits.idle_secs)
        } else if self.lifecycle.has_left_stream() && limits.vanished_secs > 0 {
            limits.vanished_secs.min(limits.idle_secs)
        } else {
            limits.idle_secs
        };
        (self.is_quiet() && self.setup.duplex.is_none())
            .then(|| self.quiet_since().plus(secs * 1_000))
    }

    /// When the idle session leaves memory.
    pub(crate) fn sleeps_at(&self) -> Option<Millis> {
        let secs = Some(self.setup.limits.sleep_after_secs).filter(|secs| *secs > 0)?;
        let sleeps = self.is_quiet() && self.link.is_down() && self.handshake.is_live();
        (sleeps && self.lifecycle.leaving().is_none() && self.setup.duplex.is_none())
            .then(|| self.quiet_since().plus(secs.saturating_mul(1_000)).max(self.log_settles_at()))
    }

    /// When the log keeps no more than it must, if the store has no room for more.
    fn log_settles_at(&self) -> Millis {
        let Some(from) = self.lifecycle.store_exhausted() else { return Millis(0) };
        from.max(self.streams.log().trimmable_at(&self.setup.limits))
    }

    /// May the session leave memory now, if the node needs it?
    pub(crate) fn may_sleep_now(&self, now: Millis) -> bool {
        let link_may_close = self.link.is_down()
            || (self.setup.idle_stop_secs.is_some()
                && !self.server_requests.has_any_of_server()
                && !self.mirroring.is_reading());
        let is_whole = self.handshake.is_live() && self.setup.duplex.is_none();
        self.is_quiet()
            && link_may_close
            && is_whole
            && self.lifecycle.leaving().is_none()
            && self.log_settles_at() <= now
    }

    /// When the idle link is closed: at once if its server is retired. It is not idle while the client
    /// has subscriptions and listens to a stream.
    pub(crate) fn link_idles_at(&self) -> Option<Millis> {
        if self.link.is_retired() {
            return self.link_idle_for(0);
        }
        self.link_idle_for(self.setup.idle_stop_secs?.into())
    }

    /// When the link has been idle for so long that it is closed if another session needs a server.
    pub(crate) fn link_makes_room_at(&self) -> Option<Millis> {
        let secs = Some(self.setup.limits.idle_server_secs).filter(|secs| *secs > 0)?;
        self.link_idle_for(secs)
    }

    /// When the link will have been idle for this time, if nothing happens.
    fn link_idle_for(&self, secs: u64) -> Option<Millis> {
        let listens = !self.persisted.subscriptions().is_empty() && self.streams.has_listeners();
        let is_quiet = !self.posts.has_exchanges()
            && !self.server_requests.has_any_of_server()
            && !self.mirroring.is_reading();
        let idles = is_quiet && !listens && self.handshake.is_live() && self.setup.duplex.is_none();
        let since = self.link.idle_since(self.posts.used_at()).filter(|_| idles)?;
        Some(since.plus(secs.saturating_mul(1_000)))
    }

    /// Is no request in flight, and does no connection listen?
    fn is_quiet(&self) -> bool {
        !self.posts.has_exchanges() && !self.mirroring.has_parked() && !self.streams.has_listeners()
    }

    /// When the client last did something, or a request was settled.
    fn quiet_since(&self) -> Millis {
        self.lifecycle.touched().max(self.posts.used_at())
    }
}
