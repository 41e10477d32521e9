//! A connection whose two ends have proven themselves to each other.

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
use crate::wire::{OrderlyEnd, Wire};
use crate::{Answerer, Calls, Limits};

/// How long a peer has to close a connection that this node has ended.
const CLOSE_GRACE: Duration = Duration::from_millis(100);

/// A connection to a peer that is known. It is closed when this is dropped.
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

    /// Who is at the other end.
    pub fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// Tells later whether the system of the peer closed the connection in order.
    pub fn orderly_end(&self) -> OrderlyEnd {
        self.wire.orderly_end().clone()
    }

    /// Carries these calls until the connection ends, or this future is dropped; the connection
    /// is closed when the whole value is dropped. Say then [`Calls::broke`].
    pub async fn carry(&mut self, calls: &Arc<Calls>) -> Ended {
        let handler = CallFrames { link: calls.link(), calls: calls.clone() };
        let connection = Arc::new(PeerConnection::new(handler, &self.wire));
        calls.up(connection.clone());
        connection.run(&mut self.wire, &mut self.inbox, self.heartbeat).await
    }

    /// Answers the peer's calls until the connection ends. When `closing` is cancelled, goodbye is
    /// sent, and the peer has 100 ms to close the connection. `None`: it did not.
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
        // Also where this future is dropped.
        let _calls = AnsweredCalls(connection.handler());
        let mut running = connection.run(&mut self.wire, &mut self.inbox, self.heartbeat);
        tokio::select! {
            ended = &mut running => Some(ended),
            () = closing.cancelled() => {
                connection.say_goodbye();
                timeout(CLOSE_GRACE, running).await.ok()
            }
        }
    }

    /// Sends nothing and waits for the end of the connection. A peer that sends something on it
    /// ends it too. After `idle` without traffic the system begins to ask whether the peer's machine
    /// is there, and ends the connection when its own number of probes stays unanswered.
    pub async fn wait_for_end(&mut self, idle: Duration) {
        // Where the system cannot do that, the connections with calls notice it.
        let _ = self.wire.keep_alive(idle);
        let (wire, inbox) = (&mut self.wire, &mut self.inbox);
        let _ = poll_fn(|context| inbox.poll_fill(wire, context)).await;
    }
}

/// The calls that one connection answers. They end with this.
struct AnsweredCalls<'a>(&'a IncomingCalls);

impl Drop for AnsweredCalls<'_> {
    fn drop(&mut self) {
        self.0.end_calls();
    }
}

/// Reads and writes the frames of calls on one connection. Frames are written only while it is the
/// newest link to the peer.
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
