//! Leases of nodes, and marks of dead ones.

use std::collections::HashMap;

use crate::{Error, Incarnation, Lease, Marking, Presence, Renewed};

/// What is known of incarnations. As many as renew; what expired is forgotten at each renewal.
#[derive(Debug, Default)]
pub(super) struct Leases(HashMap<Incarnation, Known>);

#[derive(Debug)]
struct Known {
    presence: Presence,
    /// From when on it counts for nothing.
    expires: u64,
}

impl Leases {
    pub(super) fn renew(
        &mut self,
        lease: Lease,
        (now, expires): (u64, u64),
    ) -> Result<Renewed, Error> {
        self.0.retain(|_, known| known.expires > now);
        let was_there = match self.presence(lease.incarnation, now) {
            Presence::Live(_) => true,
            Presence::Dead { by } => return Err(Error::MarkedDead { by }),
            Presence::Gone => false,
        };
        self.0.insert(lease.incarnation, Known { presence: Presence::Live(lease), expires });
        Ok(Renewed { was_there })
    }

    pub(super) fn live(&self, now: u64) -> impl Iterator<Item = &Lease> {
        self.0.values().filter(move |known| known.expires > now).filter_map(|known| {
            match &known.presence {
                Presence::Live(lease) => Some(lease),
                _ => None,
            }
        })
    }

    pub(super) fn presence(&self, incarnation: Incarnation, now: u64) -> Presence {
        match self.0.get(&incarnation) {
            Some(known) if known.expires > now => known.presence.clone(),
            _ => Presence::Gone,
        }
    }

    /// How long the lease stands, in milliseconds.
    pub(super) fn left(&self, incarnation: Incarnation, now: u64) -> Option<u64> {
        let known = self.0.get(&incarnation)?;
        let live = matches!(known.presence, Presence::Live(_)) && known.expires > now;
        live.then(|| known.expires - now)
    }

    pub(super) fn mark_dead(
        &mut self,
        incarnation: Incarnation,
        by: Incarnation,
        (now, expires): (u64, u64),
    ) -> Result<Marking, Error> {
        match self.presence(by, now) {
            Presence::Live(_) => {}
            Presence::Dead { by } => return Err(Error::MarkedDead { by }),
            Presence::Gone => return Err(Error::LeaseGone),
        }
        if let Presence::Dead { .. } = self.presence(incarnation, now) {
            return Ok(Marking::Dead);
        }
        let others = self.live(now).filter(|l| l.incarnation != by && l.incarnation != incarnation);
        for other in others {
            if other.linked.contains(&incarnation) {
                return Ok(Marking::LinkedTo(other.incarnation));
            }
        }
        let mark = Known { presence: Presence::Dead { by }, expires };
        self.0.insert(incarnation, mark);
        Ok(Marking::Dead)
    }
}
