//! Checks the settings that Redis reports. A setting that breaks a guarantee of the store is
//! logged at each connection. The store still starts: the operator may have accepted the risk.

use redis::Value;

use super::answer::text;

/// The longest time in which a Sentinel should detect a dead primary. With a longer one, a
/// failover takes longer than requests of clients are held.
const DOWN_AFTER_MS_MAX: u64 = 5_000;

/// Warnings about the answers to `INFO memory` and `INFO persistence`.
pub(super) fn of_server(memory: &Value, persistence: &Value) -> Vec<&'static str> {
    let mut warnings = Vec::new();
    let bounded = field(memory, "maxmemory").is_some_and(|bytes| bytes != "0");
    if bounded && field(memory, "maxmemory_policy").is_some_and(|policy| policy != "noeviction") {
        warnings.push("redis may evict sessions; set maxmemory-policy to noeviction");
    }
    if field(persistence, "aof_enabled") == Some("0") {
        warnings.push("redis loses all sessions when it restarts; set appendonly to yes");
    }
    warnings
}

/// A warning about the time in which a Sentinel detects a dead primary.
pub(super) fn of_sentinel(down_after_ms: Option<&str>) -> Option<&'static str> {
    let wait: u64 = down_after_ms?.parse().ok()?;
    (wait > DOWN_AFTER_MS_MAX).then_some(
        "a failover of redis may take too long; set down-after-milliseconds to 3000 or less",
    )
}

/// The value of a field in an answer to `INFO`.
pub(super) fn field<'v>(info: &'v Value, name: &str) -> Option<&'v str> {
    let text = match info {
        Value::VerbatimString { text, .. } => text,
        other => text(other)?,
    };
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn only_settings_that_break_a_guarantee_are_warned_about() {
        let safe = info("# Memory\r\nmaxmemory:9\r\nmaxmemory_policy:noeviction\r\n");
        let unbounded = info("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n");
        let evicts = info("maxmemory:9\r\nmaxmemory_policy:volatile-ttl\r\n");
        let kept = info("aof_enabled:1\r\n");
        assert!(of_server(&safe, &kept).is_empty());
        assert!(of_server(&unbounded, &kept).is_empty());
        assert!(of_server(&Value::Nil, &Value::Nil).is_empty());
        assert_eq!(of_server(&evicts, &info("aof_enabled:0\r\n")).len(), 2);
        assert!(of_sentinel(Some("30000")).is_some());
        assert!(of_sentinel(Some("3000")).is_none() && of_sentinel(None).is_none());
    }
}
