//! Charges what is read of a server to its tenant, until the session has it.

use std::time::Duration;

use budget::{Held, Share, in_granules};
use tokio::time::{Instant, sleep};

use crate::Failure;

/// How long nothing is read while the tenant keeps more bytes than it may. Then the exchange fails.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often room is looked for.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// What an exchange is charged for, if its session is charged at all. Nothing once this is dropped.
pub(crate) struct Charge(Option<Held>);

impl Charge {
    pub(crate) fn new(share: Option<&Share>) -> Self {
        Self(share.map(Held::nothing))
    }

    /// Charges so many bytes in all. Waits while the share is exceeded, also by what the tenant's sessions
    /// keep: meanwhile nothing is read.
    pub(crate) async fn set(&mut self, bytes: usize) -> Result<(), Failure> {
        let Some(held) = &mut self.0 else { return Ok(()) };
        if in_granules(bytes) == held.amount() {
            return Ok(());
        }
        held.set(in_granules(bytes));
        let deadline = Instant::now() + ROOM_WAIT_MAX;
        while held.share().is_exceeded() {
            if Instant::now() >= deadline {
                return Err(Failure::NoRoom);
            }
            sleep(ROOM_RETRY).await;
        }
        Ok(())
    }

    /// Charges so many bytes in all, which are not more than before.
    pub(crate) fn lower(&mut self, bytes: usize) {
        if let Some(held) = &mut self.0 {
            held.set(in_granules(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use budget::{Budget, GRANULE_BYTES, ShareLimits};

    use super::*;

    #[tokio::test]
    async fn nothing_is_read_while_the_tenant_keeps_too_much_and_all_is_given_back() {
        let limits = ShareLimits { min: 0, max: 2 * GRANULE_BYTES };
        let budget = Budget::new(10 * GRANULE_BYTES, [("a".into(), limits)]);
        let share = budget.share("a").unwrap();
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
}
