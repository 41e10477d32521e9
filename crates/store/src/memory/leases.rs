//! Leases of nodes and dead marks, in memory.

use std::collections::HashMap;
use std::io;

use crate::{Error, Incarnation, Lease, Marking, Presence};

/// The leases and dead marks of incarnations. Bounded by the number of nodes that renew: each
/// renewal removes the expired entries.
#[derive(Debug, Default)]
pub(super) struct Leases(HashMap<Incarnation, LeaseEntry>);

#[derive(Debug)]
struct LeaseEntry {
    presence: Presence,
    /// The number of the renewal that found no lease.
    begun: u64,
    /// When the entry expires.
    expires: u64,
}

impl Leases {
    /// Returns whether the lease was there.
    pub(super) fn renew(
        &mut self,
        lease: Lease,
        (now, expires): (u64, u64),
    ) -> Result<bool, Error> {
        self.0.retain(|_, entry| entry.expires > now);
        let held = self.0.get(&lease.incarnation);
        let begun = match held.map(|entry| (&entry.presence, entry.begun)) {
            Some((Presence::Live(held), _)) if held.renewal > lease.renewal => {
                let why = "the renewal arrived late: the store holds a newer one of this lease";
                return Err(Error::Unavailable(io::Error::other(why)));
            }
            Some((Presence::Dead { by }, _)) => return Err(Error::MarkedDead { by: *by }),
            Some((Presence::Live(held), begun)) if held.renewal == lease.renewal => {
                return Ok(begun <= lease.acknowledged);
            }
            Some((Presence::Live(_), begun)) => begun,
            Some((Presence::Gone, _)) | None => lease.renewal,
        };
        let was_there = begun <= lease.acknowledged;
        let incarnation = lease.incarnation;
        // The acknowledged number is only for the store: other nodes do not read it.
        let presence = Presence::Live(Lease { acknowledged: 0, ..lease });
        self.0.insert(incarnation, LeaseEntry { presence, begun, expires });
        Ok(was_there)
    }

    pub(super) fn leave(&mut self, incarnation: Incarnation, (now, expires): (u64, u64)) {
        if !matches!(self.presence(incarnation, now), Presence::Dead { .. }) {
            let presence = Presence::Dead { by: incarnation };
            self.0.insert(incarnation, LeaseEntry { presence, begun: 0, expires });
        }
    }

    pub(super) fn live(&self, now: u64) -> impl Iterator<Item = &Lease> {
        self.0.values().filter(move |entry| entry.expires > now).filter_map(|entry| {
            match &entry.presence {
                Presence::Live(lease) => Some(lease),
                _ => None,
            }
        })
    }

    pub(super) fn presence(&self, incarnation: Incarnation, now: u64) -> Presence {
        match self.0.get(&incarnation) {
            Some(entry) if entry.expires > now => entry.presence.clone(),
            _ => Presence::Gone,
        }
    }

    pub(super) fn mark_dead(
        &mut self,
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        (now, expires): (u64, u64),
    ) -> Result<Marking, Error> {
        match self.presence(by, now) {
            Presence::Live(_) => {}
            Presence::Dead { by } => return Err(Error::MarkedDead { by }),
            Presence::Gone => return Err(Error::LeaseGone),
        }
        match (self.presence(incarnation, now), seen) {
            (Presence::Dead { .. }, _) => return Ok(Marking::Dead),
            (Presence::Live(lease), Some(seen)) if lease.renewal != seen => {
                return Ok(Marking::Renewed);
            }
            _ => {}
        }
        let others = self.live(now).filter(|lease| {
            let node = lease.incarnation;
            node != by && node != incarnation && !also_dead.contains(&node)
        });
        for other in others {
            if other.linked.contains(&incarnation) {
                return Ok(Marking::LinkedTo(other.incarnation));
            }
        }
        let mark = LeaseEntry { presence: Presence::Dead { by }, begun: 0, expires };
        self.0.insert(incarnation, mark);
        Ok(Marking::Dead)
    }
}
