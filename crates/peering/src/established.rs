//! A connection whose two ends have authenticated each other.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use tick::Deferred;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::connection::{Ended, FrameHandler, Heartbeat, PeerConnection};
use crate::frame::Kind;
use crate::handshake::PeerIdentity;
use crate::inbox::Inbox;
use crate::incoming_calls::IncomingCalls;
use crate::socket::OrderlyEnd;
use crate::wire::Wire;
use crate::{Answerer, Calls, Limits};

/// How long a peer has to close a connection that this node has ended.
const CLOSE_GRACE: Duration = Duration::from_millis(100);

/// An authenticated connection to a peer. Dropping it closes it.
pub struct Established {
    peer: PeerIdentity,
    wire: Wire,
    inbox: Inbox,
    heartbeat: Heartbeat,
}

impl Established {
    pub(crate) fn new(peer: PeerIdentity, wire: Wire, inbox: Inbox, heartbeat: Heartbeat) -> Self {
        Self { peer, wire, inbox, heartbeat }
    }

    /// The node at the other end.
    pub fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// Reports, once the connection has ended, whether the peer's kernel closed it in order.
    pub fn orderly_end(&self) -> OrderlyEnd {
        self.wire.orderly_end().clone()
    }

    /// Carries these calls until the connection ends or this future is dropped. The connection is
    /// closed when `self` is dropped; call [`Calls::link_broke`] then.
    pub async fn carry(&mut self, calls: &Arc<Calls>) -> Ended {
        let handler = CallFrames { link: calls.link(), calls: calls.clone() };
        let connection = Arc::new(PeerConnection::new(handler, &self.wire));
        calls.up(connection.clone());
        connection.run(&mut self.wire, &mut self.inbox, self.heartbeat).await
    }

    /// Answers the peer's calls until the connection ends. When `closing` is cancelled, a goodbye
    /// is sent, and the peer has 100 ms to close the connection. `None`: the peer did not close it
    /// in time.
    pub async fn answer(
        &mut self,
        answerer: Arc<dyn Answerer>,
        limits: Limits,
        closing: &CancellationToken,
    ) -> Option<Ended> {
        let connection = Arc::new_cyclic(|connection| {
            let connection: &Weak<PeerConnection<IncomingCalls>> = connection;
            let flush = connection.clone() as Weak<dyn Deferred>;
            PeerConnection::new(IncomingCalls::new(answerer, limits, flush), &self.wire)
        });
        // The calls end also if this future is dropped.
        let _calls = AnsweredCalls(connection.handler());
        let mut running = connection.run(&mut self.wire, &mut self.inbox, self.heartbeat);
        tokio::select! {
            ended = &mut running => Some(ended),
            () = closing.cancelled() => {
                connection.send_goodbye();
                timeout(CLOSE_GRACE, running).await.ok()
            }
        }
    }

    /// Waits for the end of the connection without sending. A frame from the peer ends it too.
    /// After `idle` without traffic the kernel sends keep-alive probes, and ends the connection if
    /// they stay unanswered.
    pub async fn wait_for_end(&mut self, idle: Duration) {
        // If the kernel does not support it, the links detect the loss.
        let _ = self.wire.keep_alive(idle);
        let (wire, inbox) = (&mut self.wire, &mut self.inbox);
        let _ = poll_fn(|context| inbox.poll_fill(wire, context)).await;
    }
}

/// Ends the calls of one connection on drop.
struct AnsweredCalls<'a>(&'a IncomingCalls);

impl Drop for AnsweredCalls<'_> {
    fn drop(&mut self) {
        self.0.end_calls();
    }
}

/// Reads and writes the frames of calls on one connection. Frames are written only while the
/// connection is the newest link to the peer.
struct CallFrames {
    link: u64,
    calls: Arc<Calls>,
}

impl FrameHandler for CallFrames {
    fn handle_frame(&self, kind: Kind) -> bool {
        self.calls.take(kind)
    }

    fn write_frames(&self, out: &mut BytesMut, enough_bytes: usize) {
        self.calls.write_frames(self.link, out, enough_bytes);
    }
}
