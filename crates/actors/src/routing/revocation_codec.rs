//! Revocations as nodes send them to each other.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use cluster::{CallError, Replies, Revocations};
use ownership::{Revocation, RevocationTimes};
use prost::Message as _;

use super::messages::{self, Request, RequestKind};

/// The newest version of payloads whose readers do not know this message.
const WITHOUT: u32 = 3;

/// Whether a peer that reads this version of payloads reads revocations.
pub(crate) fn reads_revocations(version: Option<u32>) -> bool {
    version.is_some_and(|version| version > WITHOUT)
}

/// Encodes a call that brings these revocations, and whose sender has a list of this fingerprint.
pub(crate) fn encode_call(revocations: &[Revocation], fingerprint: u64) -> Bytes {
    messages::encode(&Request::from(RequestKind::Revocations(message(revocations, fingerprint))))
}

/// Decodes the reply: revocations, and the fingerprint of the peer's list.
pub(crate) fn decode_reply(bytes: Bytes) -> Option<(Vec<Revocation>, u64)> {
    let reply = messages::Revocations::decode(bytes).ok()?;
    Some((read(reply.revocations), reply.fingerprint))
}

/// Adds the revocations that a peer sent. Replies with those of this node, if the peer has others.
pub(super) fn receive(known: &Revocations, received: messages::Revocations) -> Box<dyn Replies> {
    known.merge(&read(received.revocations));
    let list = known.list();
    let fingerprint = list.fingerprint();
    let news = if fingerprint == received.fingerprint { Vec::new() } else { list.all() };
    Box::new(OneReply(Some(messages::encode(&message(&news, fingerprint)))))
}

fn message(revocations: &[Revocation], fingerprint: u64) -> messages::Revocations {
    let one = |Revocation { tenant, principal, times }: &Revocation| messages::Revocation {
        tenant: tenant.to_string(),
        principal: principal.to_string(),
        lifted_ms: times.lifted_ms,
        revoked_ms: times.revoked_ms,
    };
    messages::Revocations { revocations: revocations.iter().map(one).collect(), fingerprint }
}

fn read(revocations: Vec<messages::Revocation>) -> Vec<Revocation> {
    let one = |one: messages::Revocation| Revocation {
        tenant: Arc::from(one.tenant),
        principal: Arc::from(one.principal),
        times: RevocationTimes { revoked_ms: one.revoked_ms, lifted_ms: one.lifted_ms },
    };
    revocations.into_iter().map(one).collect()
}

struct OneReply(Option<Bytes>);

impl Replies for OneReply {
    fn poll_next(&mut self, _context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}
