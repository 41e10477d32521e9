//! Reads the address of the master from Sentinels.

use std::io;

use redis::Value;

use super::address::Address;
use super::answer::text;
use super::dial::Dialer;
use super::warnings;

/// Returns the address of the master of this name, from the Sentinel with the newest
/// configuration epoch.
pub(super) async fn find_master(
    sentinels: &[Address],
    master: &str,
    dialer: &Dialer,
) -> io::Result<Address> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("SENTINEL").arg("MASTER").arg(master);
    let answers = dialer.query_all(sentinels, &pipeline).await;
    let known = answers.iter().filter_map(|(_, answers)| master_in(answers.first()?));
    known
        .max_by_key(|(epoch, _)| *epoch)
        .map(|(_, address)| address)
        .ok_or_else(|| io::Error::other(format!("no sentinel knows the master {master}")))
}

/// The epoch and address in one Sentinel's answer, which alternates names and values.
fn master_in(answer: &Value) -> Option<(u64, Address)> {
    let Value::Array(fields) = answer else { return None };
    let field = |name: &str| {
        fields.chunks_exact(2).find(|pair| text(&pair[0]) == Some(name)).and_then(|p| text(&p[1]))
    };
    if let Some(warning) = warnings::of_sentinel(field("down-after-milliseconds")) {
        tracing::warn!("{warning}");
    }
    let port = field("port")?.parse().ok()?;
    let epoch = field("config-epoch")?.parse().ok()?;
    Some((epoch, Address { host: field("ip")?.into(), port }))
}
