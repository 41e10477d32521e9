//! The link between a session and a tenant's server.
//!
//! This module does not depend on the kind of server: an implementation either drives
//! the [`ServerEnd`] that [`Link::pair`] returns, or the task that polls the
//! [`LinkEvents`] drives it in place. Neither half ever waits for the other side.

mod pair;

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use budget::Share;
use bytes::Bytes;
use protocol::{Message, Position, Request, RequestId, SessionId, UpstreamTokens};
use tokio::sync::watch;
use upstream::{Linking, User};

pub use self::pair::{EventReceiver, EventSender, Gone, ServerEnd};

/// How often a node that stops looks whether its links have ended.
const ENDED_INTERVAL: Duration = Duration::from_millis(10);

/// The tokens for upstream servers of the latest request of a session's client that had some.
pub type LatestTokens = watch::Receiver<Option<UpstreamTokens>>;

/// An exchange of a client's token. The error is for the client.
pub type Exchanging =
    Pin<Box<dyn Future<Output = Result<UpstreamTokens, upstream::CredentialProblem>> + Send>>;

/// A configured MCP server of a tenant.
pub trait Backend: Send + Sync + 'static {
    /// Opens a link for a session, from within a tokio runtime. Never waits and never
    /// fails: the link reports errors. Once both halves are dropped, also before the
    /// link is up, nothing that the link started is left, except what it has saved
    /// ([`LinkEvent::Saved`]): [`Link::end`] ends that as well.
    fn open(&self, session: &SessionId) -> Link;

    /// As [`Self::open`], for a session of the client that this digest identifies. A server whose
    /// start outlives the session may be given to a later session of the same client.
    fn open_for(&self, session: &SessionId, principal: &[u8; 32]) -> Link {
        let _ = principal;
        self.open(session)
    }

    /// As [`Self::open_for`]. `tokens` gives the tokens for upstream servers of the client's latest request,
    /// for messages that are no request of the client.
    fn open_with(
        &self,
        session: &SessionId,
        principal: &[u8; 32],
        tokens: &dyn Fn() -> LatestTokens,
    ) -> Link {
        let _ = tokens;
        self.open_for(session, principal)
    }

    /// Whether a session that cannot be carried on ends.
    fn is_stateful(&self) -> bool {
        false
    }

    /// Whether its servers get tokens of the users of clients.
    fn needs_tokens(&self) -> bool {
        false
    }

    /// The tokens that the requests of a user to this backend need; `None` if they need none. Bounded in
    /// time.
    fn exchange(&self, user: &User) -> Option<Exchanging> {
        let _ = user;
        None
    }

    /// How users link accounts at the servers of the backend, of those at which they do.
    fn linkings(&self) -> Vec<Linking> {
        Vec::new()
    }

    /// How long a new link does not reach its server, because former ones could not; `None` if that is not known. A
    /// link that is opened then is the first to try again.
    fn held_back_for(&self) -> Option<Duration> {
        None
    }

    /// As [`Self::open_with`], with what another node's link of the session saved. The link answers
    /// `initialize` from it, and goes on where the other one was. If it cannot, it goes down.
    fn carry_on(
        &self,
        session: &SessionId,
        principal: &[u8; 32],
        saved: SavedLink,
        tokens: &dyn Fn() -> LatestTokens,
    ) -> Link {
        let _ = saved;
        self.open_with(session, principal, tokens)
    }

    /// Starts servers in advance, if the backend is to. Called from within a tokio runtime when the
    /// node starts, and after each change of the backends. Only the first call has an effect.
    fn start_in_advance(&self) {}

    /// The node gives the backend to no further session. Ends the servers that no session has, and
    /// starts none in advance any more. Sessions that have the backend can still open links. Those with
    /// servers that keep nothing between two requests get [`LinkEvent::Retired`].
    fn retire(&self) {}

    /// The number of links whose ends take time: of those that are open, and of those that are being
    /// ended.
    fn links(&self) -> usize {
        0
    }

    /// The names of those of several servers that have neither been ready nor failed.
    fn starting(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// What an operator should know of the servers, after links to them were open.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The backends of the node, by tenant. They can change while the node runs. Cheap to clone.
#[derive(Clone, Default)]
pub struct Backends(Arc<Tables>);

#[derive(Default)]
struct Tables {
    by_tenant: RwLock<ByTenant>,
    /// Those that no tenant has any more, while a session has them or their links are being ended.
    retired: Mutex<Vec<Arc<dyn Backend>>>,
}

type ByTenant = HashMap<Arc<str>, Arc<dyn Backend>>;

impl Backends {
    /// Creates the table from pairs of tenant and backend.
    pub fn new(backends: impl IntoIterator<Item = (Arc<str>, Arc<dyn Backend>)>) -> Self {
        let by_tenant = RwLock::new(backends.into_iter().collect());
        Self(Arc::new(Tables { by_tenant, retired: Mutex::default() }))
    }

    /// Replaces all backends, and retires those that no tenant has any more. A session keeps the one
    /// that it has for as long as its link is open.
    pub fn replace(&self, backends: impl IntoIterator<Item = (Arc<str>, Arc<dyn Backend>)>) {
        let table: ByTenant = backends.into_iter().collect();
        let kept: HashSet<_> = table.values().map(address).collect();
        let mut current = self.0.by_tenant.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *current, table);
        // The former ones are retired and dropped after the lock.
        drop(current);
        let unused = former.into_values().filter(|backend| !kept.contains(&address(backend)));
        let unused: Vec<_> = unused.inspect(|backend| backend.retire()).collect();
        let mut retired = self.0.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.extend(unused);
        // The count is of this table, and of the sessions that have the backend.
        let is_in_use = |backend: &Arc<dyn Backend>| Arc::strong_count(backend) > 1;
        let ended = retired.extract_if(.., |backend| !is_in_use(backend) && backend.links() == 0);
        let ended: Vec<_> = ended.collect();
        drop(retired);
        drop(ended);
    }

    /// Starts servers in advance, where the settings say so.
    pub fn start_in_advance(&self) {
        // Started after the lock.
        let table = self.0.by_tenant.read().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = table.values().cloned().collect();
        drop(table);
        all.iter().for_each(|backend| backend.start_in_advance());
    }

    /// Waits until the servers, also former ones, know that their sessions are over, for a node that stops; at most so long.
    pub async fn links_ended(&self, within: Duration) {
        let mut all: Vec<_> = {
            let table = self.0.by_tenant.read().unwrap_or_else(PoisonError::into_inner);
            table.values().cloned().collect()
        };
        let retired = self.0.retired.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.extend(retired);
        let until = Instant::now() + within;
        while all.iter().any(|backend| backend.links() > 0) && Instant::now() < until {
            tokio::time::sleep(ENDED_INTERVAL).await;
        }
    }

    /// Returns the backend of the tenant.
    pub fn of(&self, tenant: &str) -> Option<Arc<dyn Backend>> {
        self.0.by_tenant.read().unwrap_or_else(PoisonError::into_inner).get(tenant).cloned()
    }
}

/// Identifies a backend among those that exist.
fn address(backend: &Arc<dyn Backend>) -> *const () {
    Arc::as_ptr(backend).cast()
}

/// Bounds of a link, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Maximum number of queued messages. At the bound the session's `send` fails with
    /// [`SendError::Full`], and the server's [`EventSender::send`] waits.
    pub messages_max: usize,
    /// Maximum number of queued bytes, with the same consequence. A single message may be
    /// larger: it is accepted while the queue is empty.
    pub bytes_max: usize,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self { messages_max: 256, bytes_max: 8 << 20 }
    }
}

/// What a link has saved, for a link of the same session at another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedLink {
    /// The last state that it saved.
    pub state: Bytes,
    /// How far each stream was read: those of these requests in flight, and others. The link responds to
    /// each of these requests.
    pub positions: Vec<(Option<RequestId>, Position)>,
}

/// Both halves of a link.
pub struct Link {
    /// Sends messages to the server.
    pub sender: LinkSender,
    /// Receives events from the server.
    pub events: LinkEvents,
}

impl Link {
    /// Creates a link, and the end of it that drives the server.
    pub fn pair(limits: LinkLimits) -> (Self, ServerEnd) {
        let (sender, receiver, end) = pair::pair(limits);
        (Self { sender: LinkSender(sender), events: LinkEvents(Source::Queue(receiver)) }, end)
    }

    /// Closes the link for good: what it has saved is not used again.
    pub fn end(self) {
        self.sender.0.end();
    }

    /// Charges the bytes of queued messages, in both directions, to a share of the session's tenant.
    /// The share refuses no message: its owner makes the tenant release bytes when it is exceeded.
    pub fn charge_to(&self, share: &Share) {
        self.sender.0.charge_to(share);
    }

    /// Creates a link whose server runs while the session polls it. `engine` creates the server
    /// from its end of the link and the session's receiver.
    pub fn in_place(
        limits: LinkLimits,
        engine: impl FnOnce(ServerEnd, EventReceiver) -> Box<dyn Engine>,
    ) -> Self {
        let (sender, receiver, end) = pair::pair(limits);
        let events = LinkEvents(Source::InPlace(engine(end, receiver)));
        Self { sender: LinkSender(sender), events }
    }
}

/// An event of a link. `Up` is the first event and `Down` the last; each occurs at most once.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// The server can receive messages.
    Up,
    /// The server sent a message.
    Message {
        /// The message.
        message: Message,
        /// The client's request to which it belongs, if the link knows it.
        about: Option<RequestId>,
    },
    /// As [`Self::Message`], of a stream that another link could request from here on. The position is
    /// kept together with what becomes of the message.
    Positioned {
        /// The message, if one came.
        message: Option<Message>,
        /// The client's request to which it and the stream belong, if the link knows it.
        about: Option<RequestId>,
        /// How far the stream was read.
        position: Position,
    },
    /// What another link needs to carry on; replaces what was saved before. Kept sealed, and with the
    /// session.
    Saved {
        /// The state. Empty if the next link is to begin anew.
        state: Bytes,
    },
    /// The server has not run this request, and does not know its session any more; [`Self::Down`] follows.
    Returned {
        /// The request.
        request: Request,
    },
    /// The server has lost a state that clients rely on; [`Self::Down`] follows.
    StateLost,
    /// Another session needs a server, and the tenant has as many as it may: the session should close
    /// the link if the server has been idle for long. May come at any time after `Up`.
    RoomWanted,
    /// The backend was retired, and its servers keep nothing between two requests: the session should
    /// close the link as soon as the server is idle. May come at any time after `Up`.
    Retired,
    /// The server has ended or could not be started. The reason is sent to clients.
    Down {
        /// Contains no secret, no path and no payload.
        reason: String,
    },
}

/// Why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue to the server is full.
    #[error("the queue to the server is full")]
    Full,
    /// The link is down.
    #[error("the link is down")]
    Down,
}

/// The half of a link that sends messages to the server.
pub struct LinkSender(pair::SessionSender);

impl LinkSender {
    /// Enqueues one message. Never waits. Messages that are sent before `Up` stay in the queue,
    /// within the link's bounds.
    pub fn send(&self, message: Message) -> Result<(), SendError> {
        self.0.send(message)
    }
}

/// The half of a link that receives events from the server.
pub struct LinkEvents(Source);

enum Source {
    /// Another task drives the server.
    Queue(EventReceiver),
    /// Polling drives the server.
    InPlace(Box<dyn Engine>),
}

/// A server that runs only while it is polled.
pub trait Engine: Send {
    /// As [`LinkEvents::poll_next`].
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>>;
}

impl LinkEvents {
    /// Polls for the next event. `None` after `Down`: there are no further events.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        match &mut self.0 {
            Source::Queue(receiver) => receiver.poll_next(context),
            Source::InPlace(engine) => engine.poll_next(context),
        }
    }

    /// Waits for the next event. As [`Self::poll_next`].
    pub async fn next(&mut self) -> Option<LinkEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}
