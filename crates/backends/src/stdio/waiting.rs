//! The children of one backend that wait for a session: spare ones, which have received nothing, and
//! starts whose client gave up.
//!
//! Each is a task that owns its child. The task offers the child here, and ends it if the offer is
//! dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::{Message, SessionId};
use tokio::sync::oneshot;

use super::opening::Claim;
use crate::ServerEnd;

/// A session that needs a child.
pub(super) struct Attachment {
    pub(super) session: SessionId,
    /// Its first message, if it was received already.
    pub(super) first: Option<Message>,
    /// Whether the session was told that the link is up.
    pub(super) is_up: bool,
    pub(super) end: ServerEnd,
}

/// A child that waits.
struct Offer {
    /// Who may have it; `None` for a spare child, which any session may have.
    claim: Option<Claim>,
    child: oneshot::Sender<Attachment>,
}

/// The children that wait, the oldest first. Each has a permit, so their number is bounded.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Offers>);

#[derive(Default)]
struct Offers {
    open: VecDeque<Offer>,
    /// Whether no child may wait any more.
    are_closed: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Offers> {
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        offers.open.retain(|offer| !offer.child.is_closed());
        offers
    }

    /// Offers a child. The receiver gets a session, or an error if the child is to end.
    pub(super) fn offer(&self, claim: Option<Claim>) -> oneshot::Receiver<Attachment> {
        let (child, attached) = oneshot::channel();
        let mut offers = self.lock();
        if !offers.are_closed {
            offers.open.push_back(Offer { claim, child });
        }
        attached
    }

    /// Ends all children that wait, and each that is offered from now on.
    pub(super) fn close(&self) {
        let mut offers = self.lock();
        offers.are_closed = true;
        offers.open.clear();
    }

    /// Whether a session of this client may find a child here.
    pub(super) fn may_have(&self, principal: Option<[u8; 32]>) -> bool {
        self.lock().open.iter().any(|offer| match &offer.claim {
            Some(claim) => Some(claim.principal) == principal,
            None => true,
        })
    }

    /// The number of spare children.
    pub(super) fn spares(&self) -> usize {
        self.lock().open.iter().filter(|offer| offer.claim.is_none()).count()
    }

    /// Gives the session a child that has received exactly its first message, or else a spare one.
    /// Returns the session if there is none.
    pub(super) fn hand_over(
        &self,
        principal: Option<[u8; 32]>,
        mut session: Attachment,
    ) -> Option<Attachment> {
        loop {
            let Some(offer) = self.take(principal, session.first.as_ref()) else {
                return Some(session);
            };
            match offer.child.send(session) {
                Ok(()) => return None,
                // The child ended meanwhile.
                Err(back) => session = back,
            }
        }
    }

    fn take(&self, principal: Option<[u8; 32]>, first: Option<&Message>) -> Option<Offer> {
        let claim = principal.zip(first);
        let claim = claim.map(|(principal, first)| Claim { principal, first: first.line() });
        let offers = &mut self.lock().open;
        let is_own = |offer: &Offer| offer.claim.is_some() && offer.claim == claim;
        let own = offers.iter().position(is_own);
        let chosen = own.or_else(|| offers.iter().position(|offer| offer.claim.is_none()))?;
        offers.remove(chosen)
    }

    /// Ends the child that has waited for longest, to make room. Returns whether there was one.
    pub(super) fn end_oldest(&self) -> bool {
        self.lock().open.pop_front().is_some()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Link, LinkLimits};

    const ADA: Option<[u8; 32]> = Some([1; 32]);
    const BOB: Option<[u8; 32]> = Some([2; 32]);

    fn message(params: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#);
        Message::parse(Bytes::from(text)).unwrap()
    }

    /// Whether a session of this client with these parameters gets a child.
    fn gets(waiting: &Waiting, principal: Option<[u8; 32]>, params: &str) -> bool {
        let (_link, end) = Link::pair(LinkLimits::default());
        let session = SessionId::parse("s").unwrap();
        let first = Some(message(params));
        waiting.hand_over(principal, Attachment { session, first, is_up: true, end }).is_none()
    }

    fn claim(principal: Option<[u8; 32]>, params: &str) -> Option<Claim> {
        Some(Claim { principal: principal.unwrap(), first: message(params).line() })
    }

    #[test]
    fn only_the_same_client_with_the_same_parameters_gets_a_start_and_only_once() {
        let waiting = Waiting::default();
        let _child = waiting.offer(claim(ADA, r#"{"a":1}"#));
        assert!(!waiting.may_have(BOB) && !waiting.may_have(None));
        assert!(!gets(&waiting, BOB, r#"{"a":1}"#), "another client");
        assert!(!gets(&waiting, None, r#"{"a":1}"#), "an unknown client");
        assert!(!gets(&waiting, ADA, r#"{"a":2}"#), "other parameters");
        assert!(gets(&waiting, ADA, r#"{"a":1}"#));
        assert!(!gets(&waiting, ADA, r#"{"a":1}"#), "a second time");
    }

    #[test]
    fn any_client_gets_a_spare_child_but_its_own_start_first() {
        let waiting = Waiting::default();
        let mut spare = waiting.offer(None);
        let _own = waiting.offer(claim(ADA, "{}"));
        assert_eq!(waiting.spares(), 1);
        assert!(gets(&waiting, ADA, "{}"));
        assert!(spare.try_recv().is_err(), "the spare one still waits");
        assert!(gets(&waiting, BOB, "{}"));
        assert_eq!(waiting.spares(), 0);
    }

    #[test]
    fn no_child_waits_where_no_session_will_come() {
        let waiting = Waiting::default();
        let mut before = [waiting.offer(None), waiting.offer(claim(ADA, "{}"))];
        waiting.close();
        let mut after = waiting.offer(None);
        for child in before.iter_mut().chain([&mut after]) {
            assert_eq!(child.try_recv().err(), Some(oneshot::error::TryRecvError::Closed));
        }
        assert_eq!(waiting.spares(), 0);
        assert!(!gets(&waiting, ADA, "{}"));
    }

    #[test]
    fn a_child_that_has_ended_is_not_handed_over() {
        let waiting = Waiting::default();
        drop(waiting.offer(None));
        assert!(!waiting.may_have(ADA) && !gets(&waiting, ADA, "{}"));
        let _child = waiting.offer(None);
        assert!(waiting.end_oldest() && !waiting.end_oldest());
    }
}
