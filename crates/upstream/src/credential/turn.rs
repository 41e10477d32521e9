//! A turn that one node of the cluster has at a time, such as the turn to refresh the tokens of a user.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::vault::{Vault, VaultUnavailable};

/// Performs the work if the turn with this name is free; `None` if it is taken. The work goes on if the caller
/// goes away.
///
/// The turn ends with the work. If the node dies before, it ends `within` after its begin. A node that gave it
/// back later than that could end the turn of another one, so work that took longer than half of `within` leaves
/// its turn to the store as well.
pub(super) async fn in_turn<W>(
    vault: &Arc<dyn Vault>,
    name: &str,
    within: Duration,
    work: W,
) -> Result<Option<W::Output>, VaultUnavailable>
where
    W: Future<Output: Send> + Send + 'static,
{
    let (vault, name) = (Arc::clone(vault), name.to_owned());
    let performed = tokio::spawn(async move {
        let began = Instant::now();
        if !vault.claim(&name, within).await? {
            return Ok(None);
        }
        let done = work.await;
        if began.elapsed() < within / 2 {
            // Otherwise the turn ends by itself.
            let _ = vault.take(&name).await;
        }
        Ok(Some(done))
    });
    // Only the end of the runtime, or a panic of the work, gives up the task.
    performed.await.unwrap_or(Err(VaultUnavailable))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::super::vault::tests::TestVault;
    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

    async fn performs(vault: &Arc<dyn Vault>, work_time: Duration) -> bool {
        in_turn(vault, "turn", WITHIN, sleep(work_time)).await.unwrap().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_had_once_at_a_time_and_ends_with_its_work() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        let second = Duration::from_secs(1);
        let (one, other) = tokio::join!(performs(&vault, second), performs(&vault, second));
        assert!(one != other);
        assert!(performs(&vault, second).await, "the work is over");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_ends_neither_the_work_nor_keeps_the_turn() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        let (go_on, waits) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let work = async move {
            let _ = waits.await;
            let _ = done.send(());
        };
        let mut called = Box::pin(in_turn(&vault, "turn", WITHIN, work));
        assert!(called.as_mut().now_or_never().is_none());
        drop(called);
        go_on.send(()).unwrap();
        is_done.await.unwrap();
        while !performs(&vault, Duration::ZERO).await {}
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_took_long_leaves_the_turn_to_the_store() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        assert!(performs(&vault, WITHIN / 2).await);
        // The vault of tests lets nothing expire.
        assert!(!performs(&vault, Duration::ZERO).await);
    }
}
