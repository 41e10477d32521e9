//! Whether the connection has taken the body of a request.

use tokio::sync::watch;

/// Notes that a connection has taken the body of a request.
#[derive(Clone, Debug)]
pub struct Sent(watch::Sender<bool>);

/// Waits until a request is sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WhenSent(watch::Receiver<bool>);

impl Sent {
    /// Nothing is sent yet.
    pub fn new() -> (Self, WhenSent) {
        let (sent, when) = watch::channel(false);
        (Self(sent), WhenSent(when))
    }

    /// The request is sent.
    pub(crate) fn note(&self) {
        self.0.send_replace(true);
    }

    /// The server has refused the request, and it is sent again.
    pub(crate) fn take_back(&self) {
        self.0.send_replace(false);
    }
}

impl WhenSent {
    /// Whether the request is sent, as soon as that is known: it may end without being sent.
    pub async fn is_sent(mut self) -> bool {
        self.0.wait_for(|is_sent| *is_sent).await.is_ok()
    }
}
