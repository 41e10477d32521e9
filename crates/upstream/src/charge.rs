//! Charges what is read of a server to its tenant, until the session has it.

use std::time::Duration;

use budget::{Growing, Held, Share, in_granules};
use tokio::time::{Instant, sleep};

use crate::Failure;

/// How long nothing is read while the tenant keeps more bytes than it may. Then the exchange fails. The time
/// begins anew when a message of the tenant is complete that was read meanwhile: of several that together
/// exceed the share, the one that waits longest is read first.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long nothing is read in any case.
const ROOM_WAIT_IN_ALL: Duration = Duration::from_secs(60);
/// How often room is looked for.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// What an exchange is charged for, if its session is charged at all; or a request to an authorization server. Nothing
/// once this is dropped.
pub(crate) struct Charge {
    growing: Option<Growing>,
    /// Whether reading waits while the share is exceeded.
    waits: bool,
}

impl Charge {
    pub(crate) fn new(share: Option<&Share>) -> Self {
        Self { growing: share.map(Growing::nothing), waits: true }
    }

    /// For what must be read also if there is no room.
    pub(crate) fn without_wait(share: &Share) -> Self {
        Self { growing: Some(Growing::nothing(share)), waits: false }
    }

    /// Charges so many bytes in all. Waits while the share is exceeded, also by what the tenant's sessions
    /// keep: meanwhile nothing is read. The share is exceeded by what exchanges have read that wait, and by
    /// what one more piece of a body has.
    pub(crate) async fn set(&mut self, bytes: usize) -> Result<(), Failure> {
        let Some(growing) = &mut self.growing else { return Ok(()) };
        if in_granules(bytes) == growing.amount() {
            return Ok(());
        }
        growing.set(in_granules(bytes));
        if !self.waits {
            return Ok(());
        }
        let begun = Instant::now();
        let (mut deadline, mut ended) = (begun + ROOM_WAIT_MAX, growing.turns_ended());
        while !growing.may_grow() {
            let ended_before = std::mem::replace(&mut ended, growing.turns_ended());
            if ended != ended_before && begun.elapsed() < ROOM_WAIT_IN_ALL {
                deadline = Instant::now() + ROOM_WAIT_MAX;
            } else if Instant::now() >= deadline {
                return Err(Failure::NoRoom);
            }
            sleep(ROOM_RETRY).await;
        }
        Ok(())
    }

    /// The charge of so many of the bytes, for what is sent on: the others are still charged. `None` if there is none.
    pub(crate) fn hand_on(&mut self, bytes: usize) -> Option<Held> {
        let (growing, bytes) = (self.growing.as_mut()?, in_granules(bytes));
        growing.leave();
        (bytes > 0).then(|| growing.hand_on(bytes))
    }

    /// Charges so many bytes in all, which are not more than before.
    pub(crate) fn lower(&mut self, bytes: usize) {
        if let Some(growing) = &mut self.growing {
            growing.leave();
            growing.set(in_granules(bytes).min(growing.amount()));
        }
    }
}

#[cfg(test)]
mod tests {
    use budget::{Budget, GRANULE_BYTES, ShareLimits};

    use super::*;

    /// The share of a tenant that may keep so many granules.
    fn share(granules: usize) -> Share {
        let limits = ShareLimits { min: 0, max: granules * GRANULE_BYTES };
        let budget = Budget::notifying(100 * GRANULE_BYTES, [("a".into(), limits)], || {});
        budget.share("a").unwrap()
    }

    #[tokio::test]
    async fn nothing_is_read_while_the_tenant_keeps_too_much_and_all_is_given_back() {
        let share = share(2);
        let mut charge = Charge::new(Some(&share));
        charge.set(GRANULE_BYTES).await.unwrap();
        assert_eq!(share.used(), GRANULE_BYTES);

        share.charge(2 * GRANULE_BYTES);
        let waiting = tokio::spawn(async move { charge.set(2 * GRANULE_BYTES).await });
        while share.used() < 4 * GRANULE_BYTES {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished());
        share.release(2 * GRANULE_BYTES);
        waiting.await.unwrap().unwrap();
        assert_eq!(share.used(), 0);
    }

    /// Reads a body of so many granules, two each second.
    async fn read(share: &Share, granules: usize) -> Result<(), Failure> {
        let mut charge = Charge::new(Some(share));
        for read in 1..=granules {
            sleep(Duration::from_millis(500)).await;
            charge.set(read * GRANULE_BYTES).await?;
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_exceed_the_share_together_are_read_one_after_another() {
        let share = share(10);
        let all = tokio::join!(read(&share, 8), read(&share, 8), read(&share, 8), read(&share, 8));
        assert_eq!(all, (Ok(()), Ok(()), Ok(()), Ok(())));
        assert_eq!(share.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_the_share_has_no_room_for_fails_and_stops_no_other_for_good() {
        let share = share(10);
        let all = tokio::join!(read(&share, 12), read(&share, 8));
        assert_eq!(all, (Err(Failure::NoRoom), Ok(())));
    }
}
