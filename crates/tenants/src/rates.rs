//! The rates of a tenant's requests: how many its clients may send together, each of them, or to some
//! tools.
//!
//! Each rule counts by itself, and a request needs a token of each rule that applies to it. All nodes of
//! a cluster count together.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::pattern::{PATTERN_BYTES_MAX, Pattern};

/// Most rates of one tenant: each request looks at all of them.
const RATES_MAX: usize = 32;

/// Most patterns of one rate.
const PATTERNS_MAX: usize = 100;

/// Longest name of a rate. It is a string of a header.
const NAME_BYTES_MAX: usize = 64;

/// Most tokens of a rate or a burst.
const TOKENS_MAX: u32 = 10_000_000;

/// The settings of one rate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateSettings {
    /// How many requests in which time, as in `"100/s"`, `"600/m"`, `"5000/h"` or `"20000/d"`.
    pub rate: String,
    /// The most requests at once, after a time with fewer. 0: those of one second, at least one.
    pub burst: u32,
    /// Who has the rate: `"tenant"`, all clients together; `"principal"`, each client; `"key"`, each
    /// key. Empty: `"tenant"`.
    pub per: String,
    /// The rate is of calls of these tools only: names, in which `*` stands for any text. Empty: of all
    /// requests.
    pub tools: Vec<String>,
    /// The rate is of requests with these keys only: names of keys, in which `*` stands for any text.
    pub keys: Vec<String>,
}

/// Who has a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// All clients of the tenant together.
    Tenant,
    /// Each client.
    Principal,
    /// Each key.
    Key,
}

/// One rate of a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct RateRule {
    /// The name in the settings, which refusals state.
    pub name: Arc<str>,
    /// The tokens that are added in a window.
    pub tokens: u32,
    /// The window, in seconds.
    pub window_secs: u32,
    /// The most tokens that are kept.
    pub burst: u32,
    /// Who has the rate.
    pub per: Per,
    tools: Box<[Pattern]>,
    keys: Box<[Pattern]>,
}

impl RateRule {
    /// The tokens for each second.
    pub fn per_sec(&self) -> f64 {
        f64::from(self.tokens) / f64::from(self.window_secs)
    }

    /// Whether the rate is of calls of some tools only.
    pub fn is_of_tools(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Whether the rate depends on the key of a request.
    pub fn is_of_keys(&self) -> bool {
        self.per == Per::Key || !self.keys.is_empty()
    }

    /// Whether calls of this tool need a token, or other requests without one.
    pub fn applies_to_tool(&self, tool: Option<&str>) -> bool {
        let fits = |name: &str| self.tools.iter().any(|tool| tool.fits(name));
        self.tools.is_empty() || tool.is_some_and(fits)
    }

    /// Whether requests with this key need a token, or those without one.
    pub fn applies_to_key(&self, key: Option<&str>) -> bool {
        let fits = |name: &str| self.keys.iter().any(|key| key.fits(name));
        match key {
            Some(key) => self.keys.is_empty() || fits(key),
            None => !self.is_of_keys(),
        }
    }
}

/// The rates of a tenant, and what it may have in the whole cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterLimits {
    /// The rates, by name.
    pub rates: Vec<RateRule>,
    /// Most requests in flight.
    pub exchanges_max: Option<u32>,
    /// Most sessions.
    pub sessions_max: Option<u32>,
    /// Most open GET streams.
    pub streams_max: Option<u32>,
    /// Most server processes.
    pub children_max: Option<u32>,
    /// Most bytes of events that are added to logs in a day.
    pub log_bytes_per_day: Option<u64>,
}

impl ClusterLimits {
    /// Whether there is no limit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a limit depends on the key of a request.
    pub fn has_keys(&self) -> bool {
        self.rates.iter().any(RateRule::is_of_keys)
    }

    /// Whether a limit depends on the tool of a request.
    pub fn has_tools(&self) -> bool {
        self.rates.iter().any(RateRule::is_of_tools)
    }
}

/// The number of a limit in its cluster: of a tenant, a name, and the client or key to which it belongs.
/// All nodes compute the same, and the number reveals no name.
pub fn limit_id(tenant: &str, name: &str, subject: &str) -> u128 {
    let mut hash = Sha256::new();
    for part in [tenant, name, subject] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    digest[..16].iter().fold(0, |id, byte| id << 8 | u128::from(*byte))
}

/// The rates of these settings. `has_clients`: whether clients have names; `has_keys`: whether some have
/// keys.
pub(crate) fn read(
    tenant: &str,
    written: &BTreeMap<String, RateSettings>,
    has_clients: bool,
    has_keys: bool,
) -> Result<Vec<RateRule>, Vec<Error>> {
    let mut wrong = Vec::new();
    if written.len() > RATES_MAX {
        wrong.push(Error::TooManyRates { name: tenant.into(), max: RATES_MAX });
    }
    let rules = written.iter().map(|(name, rate)| {
        let mut add = |key: &'static str, written: &str, remedy: &'static str| {
            let (tenant, name, written) = (tenant.to_owned(), name.clone(), written.to_owned());
            wrong.push(Error::Rate { tenant, name, key, written, remedy });
        };
        rule(name, rate, has_clients, has_keys, &mut add)
    });
    let rules: Vec<RateRule> = rules.collect();
    if wrong.is_empty() { Ok(rules) } else { Err(wrong) }
}

fn rule(
    name: &str,
    written: &RateSettings,
    has_clients: bool,
    has_keys: bool,
    add: &mut impl FnMut(&'static str, &str, &'static str),
) -> RateRule {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        add("rate", name, "name the rate with 1 to 64 of `a-z`, `A-Z`, `0-9`, `-` and `_`");
    }
    let (tokens, window_secs) = quota(&written.rate).unwrap_or_else(|| {
        let remedy = "write a number from 1 to 10000000 and a time, as in \"100/s\", \"600/m\", \
                      \"5000/h\" or \"20000/d\"";
        add("rate", &written.rate, remedy);
        (1, 1)
    });
    if written.burst > TOKENS_MAX {
        add("burst", &written.burst.to_string(), "write at most 10000000");
    }
    let per = match &*written.per {
        "" | "tenant" => Per::Tenant,
        "principal" => Per::Principal,
        "key" => Per::Key,
        other => {
            add("per", other, "write \"tenant\", \"principal\" or \"key\"");
            Per::Tenant
        }
    };
    if per == Per::Principal && !has_clients {
        let remedy = "all clients of an open endpoint are one: write \"tenant\", or another `auth`";
        add("per", &written.per, remedy);
    }
    if (per == Per::Key || !written.keys.is_empty()) && !has_keys {
        let key = if per == Per::Key { "per" } else { "keys" };
        add(key, "keys", "no client has a key here: add \"keys\" to `auth`, or remove this");
    }
    let mut patterns = |key: &'static str, texts: &[String]| {
        if texts.len() > PATTERNS_MAX {
            add(key, "a list of more than 100", "join some of them with `*`");
        }
        for text in texts.iter().filter(|text| text.is_empty() || text.len() > PATTERN_BYTES_MAX) {
            add(key, text, "write names of 1 to 512 bytes, in which `*` stands for any text");
        }
        texts.iter().map(|text| Pattern::new(text)).collect()
    };
    let per_second = tokens.div_ceil(window_secs);
    RateRule {
        name: name.into(),
        tokens,
        window_secs,
        burst: if written.burst == 0 { per_second } else { written.burst },
        per,
        tools: patterns("tools", &written.tools),
        keys: patterns("keys", &written.keys),
    }
}

/// The tokens and the seconds of a rate.
fn quota(written: &str) -> Option<(u32, u32)> {
    let (tokens, window) = written.split_once('/')?;
    let tokens = tokens.trim();
    let is_number = !tokens.is_empty() && tokens.bytes().all(|byte| byte.is_ascii_digit());
    let tokens =
        tokens.parse().ok().filter(|tokens| is_number && (1..=TOKENS_MAX).contains(tokens))?;
    let window_secs = match window.trim() {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    Some((tokens, window_secs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeySettings, Limits, Settings, Tenant};

    fn rate(rate: &str) -> RateSettings {
        RateSettings { rate: rate.into(), ..RateSettings::default() }
    }

    fn settings(auth: &str, rates: &[(&str, RateSettings)]) -> Settings {
        let rates = rates.iter().map(|(name, rate)| ((*name).to_owned(), rate.clone())).collect();
        let keys = match auth {
            "keys" => [("ada".to_owned(), KeySettings::of_key("a"))].into(),
            _ => BTreeMap::new(),
        };
        Settings { auth: Some(auth.into()), rates, keys, ..Settings::default() }
    }

    fn refusal(auth: &str, name: &str, rate: RateSettings) -> String {
        let wrong = Tenant::new("acme", &settings(auth, &[(name, rate)])).unwrap_err();
        wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    fn rule(written: RateSettings) -> RateRule {
        let tenant = Tenant::new("acme", &settings("keys", &[("r", written)])).unwrap();
        tenant.cluster_limits.unwrap().rates[0].clone()
    }

    #[test]
    fn a_rate_is_read_with_its_window() {
        for (written, per_sec, burst) in [
            ("100/s", 100.0, 100),
            ("600/m", 10.0, 10),
            ("30 / m", 0.5, 1),
            ("5400/h", 1.5, 2),
            ("86400/d", 1.0, 1),
        ] {
            let rule = rule(rate(written));
            assert_eq!((rule.per_sec(), rule.burst), (per_sec, burst), "{written}");
        }
        assert_eq!(rule(RateSettings { burst: 7, ..rate("1/s") }).burst, 7);
    }

    #[test]
    fn a_wrong_rate_is_named_with_its_remedy() {
        for written in ["", "100", "0/s", "-1/s", "+1/s", "1.5/s", "1/w", "10000001/s", "/s"] {
            let text = refusal("keys", "r", rate(written));
            assert!(
                text.contains("`tenants.acme.rates.r.rate`") && text.contains("100/s"),
                "{text}"
            );
        }
        let per = |per: &str| RateSettings { per: per.into(), ..rate("1/s") };
        assert!(refusal("keys", "r", per("client")).contains("`tenants.acme.rates.r.per`"));
        assert!(refusal("open", "r", per("principal")).contains("open endpoint"));
        assert!(refusal("open", "r", per("key")).contains("no client has a key"));
        let tools = RateSettings { tools: vec![String::new()], ..rate("1/s") };
        assert!(refusal("keys", "r", tools).contains("`tenants.acme.rates.r.tools`"));
        assert!(refusal("keys", "a b", rate("1/s")).contains("name the rate"));
        let limits = Limits { cluster_sessions_max: Some(0), ..Limits::default() };
        let wrong = Tenant::new("acme", &Settings { limits, ..Settings::open() }).unwrap_err();
        assert!(wrong[0].to_string().contains("limits.cluster_sessions_max"), "{wrong:?}");
    }

    #[test]
    fn a_rate_applies_to_its_tools_and_keys() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let tools = rule(RateSettings { tools: texts(&["get_*", "x"]), ..rate("1/s") });
        assert!(tools.applies_to_tool(Some("get_a")) && tools.applies_to_tool(Some("x")));
        assert!(!tools.applies_to_tool(Some("set_a")) && !tools.applies_to_tool(None));
        assert!(tools.applies_to_key(None) && tools.applies_to_key(Some("ada")));
        let keys = rule(RateSettings { keys: texts(&["night-*"]), ..rate("1/s") });
        assert!(keys.applies_to_key(Some("night-1")) && !keys.applies_to_key(Some("ada")));
        assert!(!keys.applies_to_key(None) && keys.applies_to_tool(None));
        let each = rule(RateSettings { per: "key".into(), ..rate("1/s") });
        assert!(each.applies_to_key(Some("ada")) && !each.applies_to_key(None));
    }

    #[test]
    fn limits_of_different_clients_have_different_numbers() {
        let ids = [
            limit_id("a", "b", "c"),
            limit_id("ab", "", "c"),
            limit_id("a", "", "bc"),
            limit_id("a", "b", ""),
        ];
        let different: std::collections::HashSet<_> = ids.into_iter().collect();
        assert_eq!(different.len(), 4);
        assert_eq!(limit_id("a", "b", "c"), ids[0]);
    }

    #[test]
    fn a_tenant_without_limits_has_none() {
        assert!(Tenant::new("acme", &Settings::open()).unwrap().cluster_limits.is_none());
    }
}
