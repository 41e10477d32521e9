//! How a session comes to be: a seat, an id, a mailbox, and its first event.

use std::sync::Arc;

use actix::{AsyncContext, Context};
use bytes::Bytes;
use conversation::{Birth, Emitter, Event, Refusal, Session};
use protocol::{Body, Mirrored, SessionId};
use store::{Digest, Owner, Token};
use tenants::{Principal, Tenant};
use tokio::sync::oneshot;

use crate::door::Door;
use crate::handle::Node;
use crate::inflow::Local;
use crate::record::Draft;
use crate::session_actor::SessionActor;
use crate::{Opened, clock, metrics};

/// What a session begins with.
pub(crate) enum Newborn {
    /// An `initialize` was posted.
    Posted {
        body: Body,
        mirrored: Option<Box<Mirrored>>,
        /// The params of the `initialize`.
        params: Bytes,
    },
    /// A duplex connection was made.
    Connected {
        /// Told when the session is recorded; dropped when it cannot be.
        recorded: oneshot::Sender<()>,
    },
}

/// Starts a session on this thread. Nothing here waits; a session that cannot come to be
/// says so to its connection, and leaves nothing behind.
pub(crate) fn begin(
    node: &Arc<Node>,
    tenant: &Arc<Tenant>,
    principal: &Principal,
    newborn: Newborn,
) -> Result<Opened, Refusal> {
    if !node.may_act() {
        return Err(Refusal::Unavailable);
    }
    let seat = node.registry.seat(tenant, node.settings.sessions_max)?;
    let random = Random::new()?;
    let session = random.session_id(&node.tag).ok_or(Refusal::Unavailable)?;
    let owner = Owner { token: Token::first(random.token), node: node.incarnation() };

    let mut context = Context::<SessionActor>::new();
    context.set_mailbox_capacity(node.settings.mailbox_max.max(1));
    let door = Arc::new(Door::new(context.address()));
    let is_duplex = matches!(newborn, Newborn::Connected { .. });
    let (sink, queue) = door.sink(node.bounds, is_duplex);
    let birth = Birth {
        limits: Arc::clone(&node.limits),
        emitter: Emitter(random.token),
        seed: random.seed,
        duplex: is_duplex.then_some(sink.id),
    };
    let (first, initialize, recorded) = match newborn {
        Newborn::Connected { recorded } => (None, Bytes::new(), Some(recorded)),
        Newborn::Posted { body, mirrored, params } => {
            (Some(Event::Posted { sink: sink.id, body, mirrored, again: false }), params, None)
        }
    };
    let draft = Draft {
        owner,
        tenant: Arc::clone(&tenant.name),
        principal: Digest(principal.digest()),
        initialize,
    };
    let enrolled = node.registry.enroll(&session, tenant, principal, Arc::clone(&door));
    let now = clock::now();
    let machine = Session::new(birth, now);
    let actor = SessionActor::new(crate::session_actor::Parts {
        id: session.clone(),
        node: Arc::clone(node),
        door: Arc::clone(&door),
        session: machine,
        draft,
        first,
        recorded,
        sink,
        enrolled,
        seat,
        now,
    });
    context.run(actor);
    metrics::SESSIONS_OPENED.inc();
    Ok(Opened { session, inflow: Local::new(queue, door).into() })
}

/// What has to be random about a session.
struct Random {
    uuid: [u8; 16],
    token: u64,
    seed: u64,
}

impl Random {
    fn new() -> Result<Self, Refusal> {
        let mut uuid = [0; 16];
        let read = getrandom::fill(&mut uuid)
            .and_then(|()| Ok(Self { uuid, token: getrandom::u64()?, seed: getrandom::u64()? }));
        read.map_err(|error| {
            tracing::error!(%error, "the system gives no randomness; no session can be made");
            Refusal::Unavailable
        })
    }

    fn session_id(&self, tag: &str) -> Option<SessionId> {
        let uuid = uuid::Builder::from_random_bytes(self.uuid).into_uuid();
        SessionId::parse(&format!("{uuid}-{tag}"))
    }
}
