//! Redis is full (`maxmemory`, `noeviction`), while leases are renewed as before.

use anyhow::{Result, ensure};
use serde_json::json;
use tests::Setup;
use tests::recorded::{HELD_AT_LEAST, Recorded, answer, call, text};

/// The first event of their stream cannot be written. The client gets the result, or after
/// `sessions.hold_ms` an error that reports the loss; it does not wait without a limit.
#[tokio::test]
async fn calls_that_become_streams_are_answered_while_redis_is_full() -> Result<()> {
    let cluster = Recorded::start([Setup::demo(), Setup::demo()]).await?;
    let mut clients = Vec::new();
    for revision in ["2025-11-25", "2025-06-18"] {
        for at in [0, 1] {
            let mut client = cluster.open(0, revision).await?;
            client.url = cluster.node(at)?.demo();
            client.is_well().await?;
            clients.push((format!("{revision}-{at}"), client));
        }
    }
    cluster.redis.told("CONFIG SET maxmemory-policy noeviction")?;
    cluster.redis.told("CONFIG SET maxmemory 1")?;
    let calls = clients.iter().flat_map(|(name, client)| {
        let silent = (format!("silent-{name}"), json!({ "ms": 600 }));
        let telling = (format!("telling-{name}"), json!({ "n": 5, "interval_ms": 80 }));
        [silent, telling].map(|(key, arguments)| (client, key, arguments))
    });
    let mut answers = tokio::task::JoinSet::new();
    for (client, key, arguments) in calls {
        let (twin, message) = (client.twin(), call(client, "rh_record", arguments, &key));
        answers.spawn(async move { (answer(&twin, message).await, key) });
    }
    while let Some(answered) = answers.join_next().await {
        let (answer, key) = answered?;
        let (response, took) = answer.map_err(|error| error.context(key.clone()))?;
        if took < HELD_AT_LEAST {
            ensure!(text(&response)? == key, "{key}: {response}");
        }
        ensure!(cluster.runs(&key)? == 1, "{key} ran {} times", cluster.runs(&key)?);
    }
    cluster.redis.told("CONFIG SET maxmemory 0")?;
    for (key, client) in &clients {
        client.is_well().await?;
        let arguments = json!({ "n": 3, "interval_ms": 50 });
        let (response, _) = answer(client, call(client, "rh_record", arguments, key)).await?;
        ensure!(text(&response)? == key, "{response}");
    }
    Ok(())
}
