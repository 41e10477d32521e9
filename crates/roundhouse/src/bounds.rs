//! Checks limits of different sections that contradict each other.
//!
//! A message that one part of the program accepts must fit the limits of the next. Otherwise it
//! passes the first limit and fails at the second, long after the node has started.

use backends::stdio::{CHILDREN_MAX, CHILDREN_NICE_MAX};

use crate::settings::{BackendSettings, Problems, Settings};
use crate::shares;

/// The bytes of a message between two nodes besides its payload: the caller, the session id, and
/// the headers that mirror the body.
const ENVELOPE_BYTES: usize = 64 << 10;

/// Below it, a single large message would exceed the bytes of all sessions.
const SESSION_BYTES_MIN: usize = 1 << 20;

/// Adds a problem for each two limits that contradict each other.
pub(crate) fn check(settings: &Settings, cluster: &cluster::Settings, problems: &mut Problems) {
    let bytes = settings.node.session_bytes_max;
    if bytes < SESSION_BYTES_MIN {
        problems.add(format!(
            "`node.session_bytes_max` is {bytes}; sessions need at least {SESSION_BYTES_MIN} bytes"
        ));
    }
    let children = settings.node.children.children_max;
    if children > CHILDREN_MAX {
        problems.add(format!(
            "`node.children_max` is {children}; a node runs at most {CHILDREN_MAX} servers"
        ));
    }
    let nice = settings.node.children.children_nice;
    if nice > CHILDREN_NICE_MAX {
        problems.add(format!(
            "`node.children_nice` is {nice}; it is at most {CHILDREN_NICE_MAX}, the lowest priority that there is"
        ));
    }
    if settings.front.head_timeout_secs == 0 {
        problems.add(
            "`front.head_timeout_secs` is 0; no client could send a head in parts, or complete a TLS handshake: write 1 \
             or above",
        );
    }
    shares::check_minima(settings, problems);
    check_bodies(settings, problems);
    check_messages(settings, cluster, problems);
}

/// The largest body must fit into what its tenant may have for bodies.
fn check_bodies(settings: &Settings, problems: &mut Problems) {
    let bodies = settings.front.body_budget(settings.body_maxima());
    for tenant in settings.tenants.keys() {
        let maximum = bodies.share(tenant).map_or(0, |share| share.max());
        if maximum < settings.front.body_bytes_max {
            problems.add(format!(
                "tenant `{tenant}` may have {maximum} bytes of incomplete bodies, less than the {} of \
                 one body; raise `front.bodies_bytes_max`, of which it has at most half beside other \
                 tenants, or `tenants.{tenant}.limits.bodies_bytes_max`, or lower \
                 `front.body_bytes_max`",
                settings.front.body_bytes_max
            ));
        }
    }
}

fn check_messages(settings: &Settings, cluster: &cluster::Settings, problems: &mut Problems) {
    // A node on its own sends nothing to another.
    if cluster.listen.is_empty() {
        return;
    }
    let carried = cluster.message_bytes_max;
    let mut must_fit = |key: &str, bytes: usize| {
        if bytes.saturating_add(ENVELOPE_BYTES) > carried {
            problems.add(format!(
                "`{key}` allows messages of {bytes} bytes, which nodes cannot send to each other: \
                 `cluster.message_bytes_max` is {carried}; raise it to at least {} on every node, or \
                 lower `{key}`",
                bytes.saturating_add(ENVELOPE_BYTES)
            ));
        }
    };
    must_fit("front.body_bytes_max", settings.front.body_bytes_max);
    for (tenant, written) in &settings.tenants {
        for (name, backend) in &written.backends {
            let (key, bytes) = match backend {
                BackendSettings::Stdio(stdio) => ("line_bytes_max", stdio.program.line_bytes_max),
                BackendSettings::Http(http) => ("message_bytes_max", http.http.message_bytes_max),
                BackendSettings::Native(_) => continue,
            };
            must_fit(&format!("tenants.{tenant}.backends.{name}.{key}"), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Environment;

    fn problems(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("roundhouse.toml");
        std::fs::write(&file, text).unwrap();
        let settings = Settings::read(Some(&file), &Environment::of([])).unwrap();
        let mut problems = Problems::default();
        check(&settings, &settings.cluster.peers, &mut problems);
        problems.lines()
    }

    #[test]
    fn the_largest_body_must_fit_into_the_share_of_each_tenant() {
        let front = |bytes: usize| format!("[front]\nbodies_bytes_max = {bytes}\n");
        let one = "[tenants.one]\nauth = 'open'\n";
        let two = format!("{one}[tenants.two.limits]\nbodies_bytes_max = 5000000\n");
        assert!(problems(&format!("{}{one}", front(4 << 20))).is_empty());
        assert!(problems(&format!("{}{two}", front(8 << 20))).is_empty());
        let [only] = &problems(&format!("{}{two}", front(7 << 20)))[..] else {
            panic!("one problem")
        };
        assert!(only.starts_with("tenant `one` may have 3670016 bytes"), "{only}");
        let small = two.replace("5000000", "4000000");
        let [only] = &problems(&format!("{}{small}", front(64 << 20)))[..] else {
            panic!("one problem")
        };
        assert!(only.contains("`tenants.two.limits.bodies_bytes_max`"), "{only}");
    }

    #[test]
    fn the_number_of_servers_is_bounded() {
        assert!(problems("[node]\nchildren_max = 100000\n").is_empty());
        let [only] = &problems("[node]\nchildren_max = 100001\n")[..] else {
            panic!("one problem")
        };
        assert!(only.contains("`node.children_max` is 100001"), "{only}");
    }

    #[test]
    fn a_head_has_at_least_a_second() {
        assert!(problems("[front]\nhead_timeout_secs = 1\n").is_empty());
        let [only] = &problems("[front]\nhead_timeout_secs = 0\n")[..] else {
            panic!("one problem")
        };
        assert!(only.contains("`front.head_timeout_secs` is 0"), "{only}");
    }

    #[test]
    fn the_priority_of_servers_is_one_that_the_kernel_has() {
        assert!(problems("[node]\nchildren_nice = 19\n").is_empty());
        let [only] = &problems("[node]\nchildren_nice = 20\n")[..] else { panic!("one problem") };
        assert!(only.contains("`node.children_nice` is 20; it is at most 19"), "{only}");
    }

    #[test]
    fn what_is_let_in_must_be_small_enough_for_nodes_to_send_to_each_other() {
        let backend = "[tenants.acme.backends.main]\nkind = 'stdio'\ncommand = 'x'\n";
        let joined = "[cluster]\nlisten = '127.0.0.1:0'\n";
        assert!(problems(&format!("{joined}{backend}")).is_empty());
        let small = format!("{joined}message_bytes_max = 16777216\n{backend}");
        let [only] = &problems(&small)[..] else { panic!("one problem") };
        assert!(only.contains("`tenants.acme.backends.main.line_bytes_max`"), "{only}");
        assert!(only.contains("`cluster.message_bytes_max`"), "{only}");
        let alone = small.replace("127.0.0.1:0", "");
        assert!(problems(&alone).is_empty());
        let [only] = &problems(&format!("{joined}[front]\nbody_bytes_max = 70000000\n"))[..] else {
            panic!("one problem")
        };
        assert!(only.contains("`front.body_bytes_max`"), "{only}");
    }
}
