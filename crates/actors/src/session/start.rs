//! Starts a session on this node: a new one, or one that the node has claimed.

use std::net::IpAddr;
use std::sync::Arc;

use actix::{AsyncContext, Context};
use conversation::{Event, OwnerTag, Refusal, Saved, Session, SessionSetup, SinkId, Unreadable};
use ownership::machine::{Acquired, Ownership};
use protocol::{Body, Message, Mirrored, Revision, SessionId};
use store::{Claimed, Owner, Token};
use tenants::{Principal, Tenant};
use tokio::sync::oneshot;

use super::actor::{ActorParts, Beginning, SessionActor};
use super::log_writer::LogWriter;
use super::record::PendingRecord;
use super::{LocalReply, SessionHandle, StopRequest};
use crate::node_context::NodeContext;
use crate::registry::{Registry, Slot};
use crate::{clock, metrics};

/// The first input of a new session.
pub(crate) enum NewSession {
    /// An `initialize` was posted.
    Posted { body: Body, mirrored: Option<Box<Mirrored>> },
    /// A duplex connection was made.
    Connected {
        /// Receives a message when the store holds the session's record; dropped if that fails.
        recorded: oneshot::Sender<()>,
    },
}

/// The client that opens a session.
#[derive(Clone, Copy)]
pub(crate) struct Opener<'a> {
    pub(crate) tenant: &'a Arc<Tenant>,
    pub(crate) principal: &'a Principal,
    /// The address that counts as one client, if it is known.
    pub(crate) client: Option<IpAddr>,
}

/// Creates a session on this thread. Never waits. If it cannot be created, its connection receives
/// the refusal, and no state is left.
pub(crate) fn create_session(
    node: &Arc<NodeContext>,
    registry: &Arc<Registry>,
    opener: Opener<'_>,
    new_session: NewSession,
) -> Result<(SessionId, LocalReply), Refusal> {
    let Opener { tenant, principal, client } = opener;
    // Read first: if the lease is lost before the session is recorded, the generation differs.
    let lease_generation = node.cluster.lease_generation();
    let share = node.session_bytes.share_of_session(&tenant.name);
    let slot = registry.take_slot(tenant, &node.session_bytes)?;
    let random = Random::new()?;
    let session = random.session_id(node.tag()).ok_or(Refusal::Unavailable)?;
    let owner = Owner { token: Token::first(random.token), node: node.cluster.incarnation() };

    let context = mailbox(node);
    let revoked_ms = node.revoked_ms(&tenant.name, principal);
    let handle = SessionHandle::new(
        session.clone(),
        share,
        principal.clone(),
        revoked_ms,
        context.address().recipient(),
    );
    let handle = Arc::new(handle);
    let is_duplex = matches!(new_session, NewSession::Connected { .. });
    let (sink, queue) = handle.new_sink(node.bounds, is_duplex);
    let setup = setup(node, &tenant.name, owner.token, random.seed, is_duplex.then_some(sink.id));
    if let NewSession::Posted { body: Body::One(Message::Request(initialize)), .. } = &new_session
        && let Some(tokens) = &initialize.tokens
    {
        handle.set_tokens(tokens);
    }
    let (first, recorded) = match new_session {
        NewSession::Connected { recorded } => (None, Some(recorded)),
        NewSession::Posted { body, mirrored } => (
            Some(Event::Posted { sink: sink.id, body, mirrored, again: false, forwarded: false }),
            None,
        ),
    };
    let pending_record = PendingRecord {
        owner,
        tenant: Arc::clone(&tenant.name),
        principal: node.digest_for_record(principal, revoked_ms),
        acquired: Acquired {
            lease_generation,
            failover_generation: node.lease_snapshot(&session).failover_generation,
        },
        random: random.next_token,
        first,
        within: None,
        creation: None,
        recorded,
    };
    let registration = registry.register(&handle, slot).ok_or(Refusal::Unavailable)?;
    end_if_revoked(node, &handle);
    registry.add_unconfirmed(&handle, client, node.settings.unconfirmed_max);
    let now = clock::now();
    let actor = SessionActor::new(ActorParts {
        context: Arc::clone(node),
        handle: Arc::clone(&handle),
        session: Session::new(setup, now),
        beginning: Beginning::New { pending_record: Box::new(pending_record), sink },
        registration,
        now,
    });
    context.run(actor);
    metrics::SESSIONS_OPENED.inc();
    Ok((session, LocalReply::new(queue, handle)))
}

/// A session that this node has claimed, and its principal.
pub(crate) struct ClaimedSession {
    pub(crate) session: SessionId,
    pub(crate) principal: Principal,
    /// The last revocation of the principal that the session came after; 0: none.
    pub(crate) revoked_ms: u64,
    pub(crate) revision: Revision,
    pub(crate) claimed: Claimed,
    pub(crate) acquired: Acquired,
    pub(crate) slot: Slot,
}

/// Starts a claimed session on this thread, from the record and the log of its former owner.
pub(crate) fn restore_session(
    node: &Arc<NodeContext>,
    registry: &Registry,
    claim: ClaimedSession,
) -> Result<(), Unreadable> {
    let ClaimedSession { session, principal, revoked_ms, revision, claimed, acquired, slot } =
        claim;
    let Claimed { record, log } = claimed;
    let (token, tenant) = (record.owner.token, Arc::clone(&record.tenant));
    // Jitter needs no secret randomness, and a token is not needed yet.
    let random = Random::new().ok();
    let seed = random.as_ref().map_or(token.random, |random| random.seed);
    let now = clock::now();
    let initialize = Arc::clone(&record.initialize);
    let saved = Saved {
        revision,
        initialize: Arc::clone(&initialize),
        state: record.state.bytes.to_bytes(),
        version: record.state.version,
        former: record.former.iter().map(|token| OwnerTag(token.random)).collect(),
        log,
    };
    let mut effects = Vec::new();
    let setup = setup(node, &tenant, token, seed, None);
    let machine = Session::restore(setup, saved, now, &mut effects)?;

    let (ttl, lifetimes) = (node.settings.record_ttl(), node.settings.lifetimes());
    let ownership = Ownership::new(session.clone(), record, acquired, ttl, now.0);
    let next_token = random.map_or(seed, |random| random.next_token);
    let log_writer = Box::new(LogWriter::new(ownership, lifetimes, next_token));

    let context = mailbox(node);
    let mailbox = context.address().recipient();
    let share = node.session_bytes.share_of_session(&tenant);
    let handle = Arc::new(SessionHandle::new(session, share, principal, revoked_ms, mailbox));
    handle.set_handshake(revision, &initialize);
    // If a concurrent claim registered the session first, this one is dropped; the registered actor
    // claims the session from it.
    let Some(registration) = registry.register(&handle, slot) else { return Ok(()) };
    end_if_revoked(node, &handle);
    node.sleeping_bytes.forget(&handle.session);
    let actor = SessionActor::new(ActorParts {
        context: Arc::clone(node),
        handle,
        session: machine,
        beginning: Beginning::Claimed { log_writer, effects },
        registration,
        now,
    });
    context.run(actor);
    Ok(())
}

/// Ends a session whose client was revoked after it was checked and before the session was registered:
/// what ends the sessions of revoked clients has not seen it.
fn end_if_revoked(node: &NodeContext, handle: &SessionHandle) {
    if node.revoked_ms(handle.tenant(), handle.principal()) > handle.revoked_ms() {
        // Its mailbox is empty.
        let _is_sent = handle.send_stop_request(StopRequest::Revoke);
    }
}

fn mailbox(node: &NodeContext) -> Context<SessionActor> {
    let mut context = Context::new();
    context.set_mailbox_capacity(node.settings.mailbox_max.max(1));
    context
}

fn setup(
    node: &NodeContext,
    tenant: &str,
    token: Token,
    seed: u64,
    duplex: Option<SinkId>,
) -> SessionSetup {
    let care = node.care(tenant);
    SessionSetup {
        limits: Arc::clone(&node.limits),
        owner_tag: OwnerTag(token.random),
        seed,
        duplex,
        rerun: care.rerun,
        start_secs: care.start_secs,
        idle_stop_secs: care.idle_stop_secs,
    }
}

/// The random values of a session.
struct Random {
    uuid: [u8; 16],
    token: u64,
    next_token: u64,
    seed: u64,
}

impl Random {
    fn new() -> Result<Self, Refusal> {
        let mut uuid = [0; 16];
        let mut words = [0; 24];
        let read = getrandom::fill(&mut uuid).and_then(|()| getrandom::fill(&mut words));
        if let Err(error) = read {
            tracing::error!(%error, "creating a session failed: the system returned no random bytes");
            return Err(Refusal::Unavailable);
        }
        let mut words = words
            .chunks_exact(8)
            .map(|word| word.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)));
        let mut word = || words.next().unwrap_or_default();
        Ok(Self { uuid, token: word(), next_token: word(), seed: word() })
    }

    fn session_id(&self, tag: &str) -> Option<SessionId> {
        let uuid = uuid::Builder::from_random_bytes(self.uuid).into_uuid();
        SessionId::parse(&format!("{uuid}-{tag}"))
    }
}
