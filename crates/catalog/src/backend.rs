//! A backend that is made of several.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use backends::http::{Linking, User};
use backends::{Backend, Exchanging, LatestTokens, Link, LinkEvent, LinkLimits, SavedLink};
use protocol::{SessionId, UpstreamTokens};

use crate::engine::{Client, Fan};
use crate::machine::Setup;
use crate::member::Members;
use crate::pins::Pinning;
use crate::saved::Saved;
use crate::shared::Shared;
use crate::slots::Slots;

/// Several backends of a tenant as one.
pub struct Catalog {
    slots: Arc<Slots>,
    shared: Arc<Shared>,
    /// The backends that another catalog has others for, which has everything else of this one.
    replaced: OnceLock<Vec<Arc<dyn Backend>>>,
}

impl Catalog {
    /// The catalog of a tenant. `backends` are those of `members`, in their order. `start`: how long the
    /// start of one of them may take. `pinning`: what is approved of each.
    pub fn new(
        tenant: &str,
        members: Members,
        backends: impl IntoIterator<Item = Arc<dyn Backend>>,
        start: Duration,
        pinning: Pinning,
    ) -> Self {
        let start_ms = u64::try_from(start.as_millis()).unwrap_or(u64::MAX);
        let slots = Arc::new(Slots::new(backends));
        assert_eq!(slots.len(), members.len(), "each member has a backend");
        assert!(pinning.pins.names().eq(members.names()), "each member has its pins");
        let shared = Shared::new(Setup { name: tenant.into(), members, start_ms }, pinning);
        Self { slots, shared: Arc::new(shared), replaced: OnceLock::new() }
    }

    /// A catalog in place of this one, which differs in the backends with these names only: it has those of
    /// `newer`. Sessions of this catalog are sessions of it: each gets the new backend when its link to the former
    /// one is opened again. Retiring this catalog then retires the former backends only.
    pub fn replacing(&self, names: &BTreeSet<String>, newer: &Self) -> Self {
        let position = |catalog: &Self, name: &str| {
            catalog.shared.setup.members.names().position(|other| &**other == name)
        };
        let replace = |name: &String| {
            let (at, of_newer) = (position(self, name)?, position(newer, name)?);
            Some(self.slots.replace(at, newer.slots.get(of_newer).backend))
        };
        let replaced: Vec<_> = names.iter().filter_map(replace).collect();
        // A catalog is replaced once.
        let _is_first = self.replaced.set(replaced);
        let (slots, shared) = (Arc::clone(&self.slots), Arc::clone(&self.shared));
        Self { slots, shared, replaced: OnceLock::new() }
    }

    fn link(&self, client: Client) -> Link {
        let (slots, shared) = (Arc::clone(&self.slots), Arc::clone(&self.shared));
        Link::in_place(LinkLimits::default(), |end, _receiver| {
            Box::new(Fan::new(slots, shared, client, end))
        })
    }
}

impl Backend for Catalog {
    fn open(&self, session: &SessionId) -> Link {
        self.link(Client { session: session.clone(), principal: None, tokens: None })
    }

    fn open_for(&self, session: &SessionId, principal: &[u8; 32]) -> Link {
        let (session, principal) = (session.clone(), Some(*principal));
        self.link(Client { session, principal, tokens: None })
    }

    fn open_with(
        &self,
        session: &SessionId,
        principal: &[u8; 32],
        tokens: &dyn Fn() -> LatestTokens,
    ) -> Link {
        let (session, principal) = (session.clone(), Some(*principal));
        self.link(Client { session, principal, tokens: self.needs_tokens().then(tokens) })
    }

    /// A catalog that cannot be carried on begins anew with all servers.
    fn is_stateful(&self) -> bool {
        self.slots.all().any(|backend| backend.is_stateful())
    }

    fn carry_on(
        &self,
        session: &SessionId,
        principal: &[u8; 32],
        saved: SavedLink,
        tokens: &dyn Fn() -> LatestTokens,
    ) -> Link {
        let Some(read) = Saved::read(&self.shared.setup.members, &saved.state) else {
            let (link, end) = Link::pair(LinkLimits::default());
            let sender = end.sender();
            if self.is_stateful() {
                // The queue is empty.
                let _is_queued = sender.try_send(LinkEvent::StateLost);
            }
            sender.down("the sessions with the servers cannot be carried on");
            return link;
        };
        let (session, principal) = (session.clone(), Some(*principal));
        let tokens = self.needs_tokens().then(tokens);
        let client = Client { session, principal, tokens };
        let (slots, shared) = (Arc::clone(&self.slots), Arc::clone(&self.shared));
        Link::in_place(LinkLimits::default(), |end, _receiver| {
            Box::new(Fan::new(slots, shared, client, end).carry_on(read, saved))
        })
    }

    fn needs_tokens(&self) -> bool {
        self.slots.all().any(|backend| backend.needs_tokens())
    }

    /// An exchange that fails costs only the tools of its server, unless there is no other.
    fn exchange(&self, user: &User) -> Option<Exchanging> {
        let exchanging = |backend: Arc<dyn Backend>| backend.exchange(user).map(tokio::spawn);
        let all: Vec<_> = self.slots.all().filter_map(exchanging).collect();
        if all.is_empty() {
            return None;
        }
        let has_others = self.slots.all().any(|backend| !backend.needs_tokens());
        Some(Box::pin(async move {
            let (mut tokens, mut failed) = (Vec::new(), None);
            for exchanging in all {
                match exchanging.await {
                    Ok(Ok(exchanged)) => tokens.extend(exchanged.all().iter().cloned()),
                    Ok(Err(problem)) => failed = failed.or(Some(problem)),
                    // A panic was logged.
                    Err(_) => {}
                }
            }
            match failed {
                Some(problem) if tokens.is_empty() && !has_others => Err(problem),
                _ => Ok(UpstreamTokens::new(tokens)),
            }
        }))
    }

    fn linkings(&self) -> Vec<Linking> {
        self.slots.all().flat_map(|backend| backend.linkings()).collect()
    }

    fn start_in_advance(&self) {
        self.slots.all().for_each(|backend| backend.start_in_advance());
    }

    fn retire(&self) {
        match self.replaced.get() {
            Some(replaced) => replaced.iter().for_each(|backend| backend.retire()),
            None => {
                self.shared.retire();
                self.slots.all().for_each(|backend| backend.retire());
            }
        }
    }

    fn links(&self) -> usize {
        match self.replaced.get() {
            Some(replaced) => replaced.iter().map(|backend| backend.links()).sum(),
            None => self.slots.all().map(|backend| backend.links()).sum(),
        }
    }

    fn starting(&self) -> Vec<Arc<str>> {
        self.shared.starting()
    }

    fn remarks(&self) -> Vec<String> {
        self.shared.remarks()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use crate::MemberSettings;

    use super::*;

    /// A server that cannot be reached, and when links to it were opened.
    struct Unreachable {
        opened: Mutex<Vec<Instant>>,
        wait: Duration,
    }

    impl Backend for Unreachable {
        fn open(&self, _session: &SessionId) -> Link {
            let (link, end) = Link::pair(LinkLimits::default());
            end.sender().down("the upstream server cannot be reached");
            self.opened.lock().unwrap().push(Instant::now());
            link
        }

        fn held_back_for(&self) -> Option<Duration> {
            Some(self.wait)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_cannot_be_reached_is_opened_again_when_it_may_be_tried() {
        let wait = Duration::from_secs(30);
        let server = Arc::new(Unreachable { opened: Mutex::default(), wait });
        let plain = MemberSettings::default();
        let members = Members::new([("a", &plain)]).unwrap();
        let pinning = Pinning::off(members.names().cloned());
        let backends = [Arc::clone(&server) as Arc<dyn Backend>];
        let catalog = Catalog::new("acme", members, backends, Duration::from_secs(10), pinning);
        let mut link = catalog.open(&SessionId::parse("s").unwrap());
        let begin = Instant::now();
        let polled = async { while link.events.next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(100), polled).await;
        let opened = server.opened.lock().unwrap();
        let after: Vec<_> = opened.iter().map(|at| (*at - begin).as_secs()).collect();
        assert_eq!(after, [0, 30, 60, 90]);
    }
}
