//! One call to the node that owns a session, as the connection that waits for it sees it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use cluster::{CallError, Calling, Cluster, Peer, Whereabouts};
use conversation::{Answer, Refusal};
use protocol::{ErrorCode, RequestId, Response, SessionId};

use super::told;
use super::{Call, Errand};
use crate::metrics::{self, Hop};
use crate::{Told, Visit};

/// How long to wait before each further attempt; after the last one the call is refused.
/// The first is for an answer that was kept too long, the others for a session that is
/// just ending or changing hands.
const AGAIN: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(200)];

/// How long a call goes on by itself whose client left before the owner had said anything,
/// so that it arrives although the link may still be in the making.
const LINGER: Duration = Duration::from_secs(1);

type Locating = Pin<Box<dyn Future<Output = Result<Peer, Refusal>> + Send>>;

/// A call to the owner and what comes back. Dropping it tells the owner that the client
/// is gone; what the client had posted arrives all the same, as it would have at home.
pub(crate) struct Forwarding {
    cluster: Cluster,
    session: SessionId,
    /// Kept until the owner has begun, to be sent again where it did not.
    call: Bytes,
    on_loss: OnLoss,
    attempts: usize,
    state: State,
    /// It goes on when its client leaves early.
    lingers: bool,
}

enum State {
    Locating(Locating),
    /// The owner was called and has said nothing yet.
    Called(Calling),
    /// The answer is a stream, and has begun.
    Streaming(Calling),
    Over,
}

/// What to do when the owner is lost before it said anything.
enum OnLoss {
    /// Ask again: doing it twice does no harm.
    Again,
    /// These requests may have been worked on, and get an error as their last word.
    Settle {
        /// Whose.
        requests: Vec<RequestId>,
        /// Were they posted as a batch?
        batch: bool,
    },
    /// Nothing waits for a last word, and nobody knows whether it was taken.
    Refuse,
}

impl OnLoss {
    fn of(errand: &Errand) -> Self {
        match errand {
            // A stream is attached anew, and a session that is over stays so.
            Errand::Listen { .. } | Errand::Delete => Self::Again,
            Errand::Post { body, .. } => {
                let requests = errand.requests();
                let batch = matches!(body, protocol::Body::Batch(_));
                if requests.is_empty() { Self::Refuse } else { Self::Settle { requests, batch } }
            }
        }
    }
}

impl Forwarding {
    /// Finds the owner and calls it. The call is on its way when this returns.
    pub(crate) async fn begin(
        cluster: Cluster,
        visit: &Visit,
        errand: &Errand,
    ) -> Result<Self, Refusal> {
        let peer = find(&cluster, &visit.session, false).await?;
        let call = Call::encode(visit, errand);
        let state = State::Called(peer.call(call.clone()));
        let session = visit.session.clone();
        let lingers = !matches!(errand, Errand::Listen { .. });
        let on_loss = OnLoss::of(errand);
        Ok(Self { cluster, session, call, on_loss, attempts: 0, state, lingers })
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Told>> {
        loop {
            match &mut self.state {
                State::Locating(locating) => match ready!(locating.as_mut().poll(context)) {
                    Ok(peer) => self.state = State::Called(peer.call(self.call.clone())),
                    Err(refusal) => return self.refuse(refusal),
                },
                State::Called(calling) => match ready!(next(calling, context)) {
                    Next::Told(told) => {
                        metrics::hop(Hop::Answered);
                        return Poll::Ready(Some(self.begun(told)));
                    }
                    Next::NotStarted => {
                        metrics::hop(Hop::NotStarted);
                        if !self.try_again() {
                            return self.refuse(Refusal::Unavailable);
                        }
                    }
                    Next::Lost | Next::End => {
                        metrics::hop(Hop::Lost);
                        if let Some(told) = self.lost() {
                            return Poll::Ready(Some(told));
                        }
                    }
                },
                State::Streaming(calling) => match ready!(next(calling, context)) {
                    Next::Told(told) => return Poll::Ready(Some(told)),
                    Next::End => self.state = State::Over,
                    // The client comes back for the rest.
                    Next::NotStarted | Next::Lost => {
                        metrics::hop(Hop::Lost);
                        self.state = State::Over;
                        return Poll::Ready(Some(Told::Abort));
                    }
                },
                State::Over => return Poll::Ready(None),
            }
        }
    }

    /// The owner has spoken: either this is all, or a stream begins.
    fn begun(&mut self, told: Told) -> Told {
        // It is never sent again, so its bytes need not be kept.
        self.call = Bytes::new();
        let state = std::mem::replace(&mut self.state, State::Over);
        if let (State::Called(calling), Told::Open { .. }) = (state, &told) {
            self.state = State::Streaming(calling);
        }
        told
    }

    /// Looks for the owner once more, unless that was done often enough.
    fn try_again(&mut self) -> bool {
        let Some(wait) = AGAIN.get(self.attempts) else { return false };
        self.attempts += 1;
        let (cluster, session) = (self.cluster.clone(), self.session.clone());
        self.state = State::Locating(Box::pin(async move {
            tokio::time::sleep(*wait).await;
            find(&cluster, &session, true).await
        }));
        true
    }

    /// The owner is lost before it said anything: what the client is told, unless it is
    /// asked for again.
    fn lost(&mut self) -> Option<Told> {
        if matches!(self.on_loss, OnLoss::Again) && self.try_again() {
            return None;
        }
        self.state = State::Over;
        Some(Told::Answer(match &self.on_loss {
            OnLoss::Again | OnLoss::Refuse => Answer::Refused(Refusal::Unavailable),
            OnLoss::Settle { requests, batch: true } => {
                Answer::Array(requests.iter().map(last_word).collect())
            }
            OnLoss::Settle { requests, batch: false } => {
                requests.first().map_or(Answer::Nothing, |id| Answer::Json(last_word(id)))
            }
        }))
    }

    fn refuse(&mut self, refusal: Refusal) -> Poll<Option<Told>> {
        self.state = State::Over;
        Poll::Ready(Some(Told::Answer(Answer::Refused(refusal))))
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        if !self.lingers || matches!(self.state, State::Streaming(_) | State::Over) {
            return;
        }
        // Outside a runtime nothing can be waited for.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut rest = Self {
            cluster: self.cluster.clone(),
            session: self.session.clone(),
            call: std::mem::take(&mut self.call),
            on_loss: OnLoss::Refuse,
            attempts: self.attempts,
            state: std::mem::replace(&mut self.state, State::Over),
            lingers: false,
        };
        // At most as many as the links take calls, each for a moment.
        runtime.spawn(async move {
            let begun = std::future::poll_fn(|context| rest.poll_next(context));
            let _ = tokio::time::timeout(LINGER, begun).await;
        });
    }
}

impl fmt::Debug for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarding").field("session", &self.session).finish_non_exhaustive()
    }
}

enum Next {
    Told(Told),
    End,
    NotStarted,
    Lost,
}

fn next(calling: &mut Calling, context: &mut Context<'_>) -> Poll<Next> {
    calling.poll_next(context).map(|reply| match reply {
        Some(Ok(reply)) => match told::decode(reply) {
            Some(told) => Next::Told(told),
            None => {
                tracing::error!("a peer replied what this version does not understand");
                Next::Lost
            }
        },
        Some(Err(CallError::NotStarted)) => Next::NotStarted,
        Some(Err(CallError::Lost)) => Next::Lost,
        None => Next::End,
    })
}

/// The node to call for a session that is not here.
async fn find(cluster: &Cluster, session: &SessionId, fresh: bool) -> Result<Peer, Refusal> {
    match cluster.locate(session, fresh).await {
        Ok(Whereabouts::There(peer)) => Ok(peer),
        // A session of this process that is not in its registry is over, and only its
        // tombstone is yet to be written.
        Ok(Whereabouts::Here | Whereabouts::Unknown) => Err(Refusal::UnknownSession),
        // Nobody takes a session over yet. Its client may come again until its record
        // expires, and is then told to begin anew.
        Ok(Whereabouts::Ownerless) => Err(Refusal::Unavailable),
        Err(error) => {
            tracing::warn!(?session, %error, "nobody can say where a session is");
            Err(Refusal::Unavailable)
        }
    }
}

fn last_word(request: &RequestId) -> Bytes {
    let message = "the node that worked on this was lost; whether it was done is not known";
    let code = ErrorCode::Refused.number();
    Response::error(Some(request.clone()), code, message, None).raw().clone()
}
