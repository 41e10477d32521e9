//! Compares what the settings ask for stdio servers with what this machine grants.

use std::collections::BTreeMap;

use backends::guard::Guard;
use backends::sandbox::{Network, Protection, Protections, Sandbox};
use backends::stdio::StdioSettings;
use front::AdminAddress;

use crate::settings::{BackendSettings, Problems, Settings};
use crate::users;

/// The protections that a server may not run without if its settings ask for them and it is
/// required to be separated.
const WHERE_REQUIRED: [Protection; 6] = [
    Protection::PidNamespace,
    Protection::OwnProc,
    Protection::KernelFiles,
    Protection::Network,
    Protection::WriteList,
    Protection::Truncation,
];

/// The page that says what an operator can do.
const PAGE: &str = "docs/security.md";

/// Each stdio backend with its key, and with the default of the node.
pub(crate) fn stdio_backends(
    settings: &Settings,
) -> impl Iterator<Item = (&str, String, StdioSettings)> {
    let default = settings.node.sandbox;
    settings.tenants.iter().flat_map(move |(tenant, written)| {
        written.backends.iter().filter_map(move |(name, backend)| {
            let BackendSettings::Stdio(stdio) = backend else { return None };
            let key = format!("tenants.{tenant}.backends.{name}");
            let sandbox = stdio.program.sandbox.or(Some(default));
            Some((tenant.as_str(), key, StdioSettings { sandbox, ..stdio.program.clone() }))
        })
    })
}

/// What this machine grants to servers, by their `user`.
pub(crate) struct Machine {
    by_user: BTreeMap<String, Protections>,
    none: Protections,
}

impl Machine {
    /// Finds out what the machine grants, if a server needs to know.
    pub(crate) fn probe(settings: &Settings, guard: Option<&Guard>) -> Self {
        let mut by_user = BTreeMap::new();
        for (_, _, stdio) in stdio_backends(settings) {
            if stdio.sandbox() == Sandbox::None || by_user.contains_key(&stdio.user) {
                continue;
            }
            // A user that cannot be had is a problem that is reported elsewhere.
            let Ok(user) = users::resolve(&stdio.user) else { continue };
            let protections = Protections::probe(guard, user.as_ref());
            let protections = match settings.node.cgroup.as_path() {
                folder if folder.as_os_str().is_empty() => protections,
                folder => protections.with_cgroups(folder),
            };
            by_user.insert(stdio.user, protections);
        }
        Self { by_user, none: Protections::none("no stdio server asks for it") }
    }

    /// What a server gets, if its settings ask for it.
    pub(crate) fn protections(&self, stdio: &StdioSettings) -> &Protections {
        self.by_user.get(&stdio.user).unwrap_or(&self.none)
    }

    /// What the machine grants to the servers of every user.
    pub(crate) fn for_all(&self) -> Protections {
        let mut all = self.by_user.iter();
        let first = all.next().map_or(&self.none, |(_, first)| first).clone();
        all.fold(first, |all, (user, protections)| all.and(protections, user))
    }
}

/// Adds a warning for each server without protections that runs as the same user as a separated
/// server of another tenant: the kernel gives it every right over that one.
fn warn_of_mixed_servers(settings: &Settings, problems: &mut Problems) {
    let all: Vec<_> = stdio_backends(settings).collect();
    let (open, separated): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, _, stdio)| stdio.sandbox() == Sandbox::None);
    for (tenant, key, stdio) in open {
        if separated.iter().any(|(other, _, one)| other != tenant && one.user == stdio.user) {
            problems.warn(format!(
                "`{key}` has no protections and runs as the same user as separated servers of other \
                 tenants, which it can read and control; give it a `user` of its own, or a node of \
                 its own"
            ));
        }
    }
}

/// Adds a problem for each server that must not start on this machine, and a warning for each that
/// runs with less than its settings ask for.
pub(crate) fn check(settings: &Settings, machine: &Machine, problems: &mut Problems) {
    let tenants_with_stdio = stdio_tenants(settings);
    warn_of_mixed_servers(settings, problems);
    for (_, key, stdio) in stdio_backends(settings) {
        let protections = machine.protections(&stdio);
        let missing = missing(&stdio, protections);
        match stdio.sandbox() {
            Sandbox::Required if !missing.is_empty() => problems.add(format!(
                "`{key}` must be separated (`sandbox = \"required\"`), but this machine refuses {}; \
                 allow it as {PAGE} says, or write `sandbox = \"auto\"`",
                missing.join(", ")
            )),
            Sandbox::Auto
                if tenants_with_stdio > 1 && !protections.grants(Protection::PidNamespace) =>
            {
                problems.add(format!(
                    "`{key}` would share its processes with other tenants: this machine refuses {}; \
                     allow it as {PAGE} says, or accept it with `{key}.sandbox = \"none\"` or \
                     `node.sandbox = \"none\"`",
                    missing.join(", ")
                ));
            }
            Sandbox::Auto | Sandbox::Required => {
                warn_of_refusals(&stdio, &key, protections, problems);
            }
            Sandbox::None => asked_for(&stdio).for_each(|(_, setting)| {
                problems.warn(format!(
                    "`{key}.{setting}` has no effect with `sandbox = \"none\"`; write \
                     `sandbox = \"auto\"`, or leave the setting out"
                ));
            }),
        }
    }
    check_cgroups(settings, machine, problems);
    check_store(settings, machine, problems);
    check_admin_socket(settings, problems);
}

/// Adds a warning for each setting that has no effect on this machine, or less than it says.
fn warn_of_refusals(
    stdio: &StdioSettings,
    key: &str,
    protections: &Protections,
    problems: &mut Problems,
) {
    let counts_in_cgroup = protections.has_controller("pids");
    let refused = asked_for(stdio).filter(|(protection, _)| {
        let is_bounded_otherwise = *protection == Protection::ProcessesMax && counts_in_cgroup;
        !protections.grants(*protection) && !is_bounded_otherwise
    });
    for (protection, setting) in refused {
        problems.warn(format!(
            "`{key}.{setting}` has no effect: this machine refuses {}; allow it as {PAGE} says, or \
             leave the setting out",
            refusal(protection, protections)
        ));
    }
    let lists = stdio.asks_for(Protection::WriteList) && protections.grants(Protection::WriteList);
    if lists && !protections.grants(Protection::Truncation) {
        problems.warn(format!(
            "`{key}.write_paths` does not keep the server from emptying files of its user elsewhere: \
             this machine refuses {}; upgrade the kernel, or give the server a `user` that owns no \
             other files",
            refusal(Protection::Truncation, protections)
        ));
    }
}

fn check_cgroups(settings: &Settings, machine: &Machine, problems: &mut Problems) {
    let protections = machine.for_all();
    let probed = stdio_backends(settings).any(|(_, _, stdio)| stdio.asks_for(Protection::Cgroup));
    if probed
        && !settings.node.cgroup.as_os_str().is_empty()
        && let Some(reason) = protections.refusal(Protection::Cgroup)
    {
        problems.add(unusable_cgroup(reason));
        return;
    }
    for (_, key, stdio) in stdio_backends(settings) {
        if !stdio.user.is_empty() && protections.grants(Protection::Cgroup) {
            // The guard enters the cgroup itself, with the rights of its user.
            problems.add(format!(
                "`{key}.user` cannot be combined with `node.cgroup`: another user cannot enter the \
                 node's cgroups; leave one of them out"
            ));
        }
        for (setting, controller, asked) in [
            ("total_memory_bytes_max", "memory", stdio.total_memory_bytes_max.is_some()),
            ("cpu_percent_max", "cpu", stdio.cpu_percent_max.is_some()),
        ] {
            if asked && !protections.has_controller(controller) {
                problems.add(format!(
                    "`{key}.{setting}` needs `node.cgroup`, with the controller `{controller}`; set \
                     it as {PAGE} says, or leave the setting out"
                ));
            }
        }
    }
}

/// The problem of a directory for cgroups that cannot be used for this reason.
pub(crate) fn unusable_cgroup(reason: &str) -> String {
    format!(
        "`node.cgroup` cannot be used: {reason}; name an empty directory of cgroup v2 that was \
         delegated to the node's user, as {PAGE} says, or leave it out"
    )
}

fn stdio_tenants(settings: &Settings) -> usize {
    let mut tenants: Vec<_> = stdio_backends(settings).map(|(tenant, _, _)| tenant).collect();
    tenants.dedup();
    tenants.len()
}

/// The settings of a backend that ask for a protection.
fn asked_for(stdio: &StdioSettings) -> impl Iterator<Item = (Protection, &'static str)> {
    let network = (stdio.network == Network::None).then_some((Protection::Network, "network"));
    let writes = (!stdio.write_paths.is_empty()).then_some((Protection::WriteList, "write_paths"));
    let processes =
        (!stdio.has_default_processes_max()).then_some((Protection::ProcessesMax, "processes_max"));
    network.into_iter().chain(writes).chain(processes)
}

/// The protections that the settings ask for and the machine refuses, with the reasons.
fn missing(stdio: &StdioSettings, protections: &Protections) -> Vec<String> {
    let missing = WHERE_REQUIRED
        .into_iter()
        .filter(|protection| stdio.asks_for(*protection) && !protections.grants(*protection));
    missing.map(|protection| refusal(protection, protections)).collect()
}

fn refusal(protection: Protection, protections: &Protections) -> String {
    let reason = protections.refusal(protection).unwrap_or_default();
    format!("`{}` ({reason})", protection.label())
}

/// A server that shares the node's network can connect to its Redis. Without a password it could
/// read and change the sessions of every tenant.
fn check_store(settings: &Settings, machine: &Machine, problems: &mut Problems) {
    if !settings.store.is_open_redis() {
        return;
    }
    let reaches = stdio_backends(settings).find(|(_, _, stdio)| {
        let protections = machine.protections(stdio);
        !(stdio.asks_for(Protection::Network) && protections.grants(Protection::Network))
    });
    if let Some((_, key, _)) = reaches {
        problems.warn(format!(
            "`store.url` names a Redis without a password, and the server of `{key}` can connect to \
             it; give Redis a password and write it as `store.password_file` (docs/redis.md), or \
             write `{key}.network = \"none\"`"
        ));
    }
}

/// The permissions of a Unix socket admit every process of the node's user, also a server.
fn check_admin_socket(settings: &Settings, problems: &mut Problems) {
    let admin = &settings.admin;
    let has_credential = !admin.token_file.as_os_str().is_empty() || !admin.credentials.is_empty();
    if !matches!(admin.listen, AdminAddress::Unix(_)) || has_credential {
        return;
    }
    if let Some((_, key, _)) =
        stdio_backends(settings).find(|(_, _, stdio)| users::is_own(&stdio.user))
    {
        problems.warn(format!(
            "`admin.listen` is a Unix socket without a token, and the server of `{key}` runs as the \
             node's user: it can drain the node and end sessions; give each server a `user` of its own, \
             or set `admin.token_file`"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Environment, Finding};

    const ONE: &str = "[tenants.acme]\nauth = 'open'\n[tenants.acme.backends.main]\nkind = 'stdio'\ncommand = 'x'\n";
    const OTHER: &str = "[tenants.beta.backends.main]\nkind = 'stdio'\ncommand = 'x'\n";

    /// Problems and warnings on a machine that refuses these protections.
    fn check_on(text: &str, refused: &[Protection]) -> (Vec<String>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("roundhouse.toml");
        std::fs::write(&file, text).unwrap();
        let settings = Settings::read(Some(&file), &Environment::of([])).unwrap();
        let all = Protections::all();
        let granted =
            refused.iter().fold(all, |granted, refused| granted.without(*refused, "not here"));
        let machine = Machine {
            by_user: BTreeMap::from([(String::new(), granted)]),
            none: Protections::none("no server"),
        };
        let mut problems = Problems::default();
        check(&settings, &machine, &mut problems);
        let (warnings, problems): (Vec<_>, Vec<_>) =
            problems.findings().into_iter().partition(|finding| finding.is_warning());
        let lines =
            |findings: Vec<&Finding>| findings.into_iter().map(ToString::to_string).collect();
        (lines(problems), lines(warnings))
    }

    fn none() -> (Vec<String>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    #[test]
    fn several_tenants_share_a_machine_without_pid_namespaces_only_if_that_is_written() {
        let refused = [Protection::PidNamespace, Protection::OwnProc];
        let both = format!("{ONE}{OTHER}");
        assert_eq!(check_on(&both, &[]), none());
        assert_eq!(check_on(ONE, &refused), none());
        let (problems, _) = check_on(&both, &refused);
        assert_eq!(problems.len(), 2);
        assert!(problems[0].contains("`tenants.acme.backends.main`"), "{problems:?}");
        assert!(problems[0].contains("`pid_namespace` (not here)"), "{problems:?}");
        assert!(problems[0].contains("`node.sandbox = \"none\"`"), "{problems:?}");
        assert_eq!(check_on(&format!("node.sandbox = 'none'\n{both}"), &refused), none());
        // A `/proc` of its own is not the condition: user and PID namespaces separate without it.
        assert_eq!(check_on(&both, &refused[1..]), none());
    }

    #[test]
    fn a_server_that_must_be_separated_does_not_start_without_a_proc_of_its_own() {
        let required = format!("node.sandbox = 'required'\n{ONE}");
        assert_eq!(check_on(&required, &[Protection::CallFilter]), none());
        let (problems, _) = check_on(&required, &[Protection::OwnProc]);
        assert!(problems[0].contains("`own_proc` (not here)"), "{problems:?}");
        let network = format!("{required}network = 'none'\n");
        let (problems, _) = check_on(&network, &[Protection::Network]);
        assert!(problems[0].contains("`network` (not here)"), "{problems:?}");
        assert_eq!(check_on(&required, &[Protection::Network]), none());
    }

    #[test]
    fn a_setting_without_effect_is_a_warning_that_names_it() {
        let lists = format!("{ONE}write_paths = ['/srv']\n");
        assert_eq!(check_on(&lists, &[]), none());
        let (problems, warnings) = check_on(&lists, &[Protection::WriteList]);
        assert_eq!((problems.len(), warnings.len()), (0, 1));
        assert!(warnings[0].contains("`tenants.acme.backends.main.write_paths`"), "{warnings:?}");
        let (_, warnings) = check_on(&format!("{lists}sandbox = 'none'\n"), &[]);
        assert!(warnings[0].contains("has no effect with `sandbox = \"none\"`"), "{warnings:?}");
    }

    #[test]
    fn a_bound_of_processes_that_the_kernel_does_not_apply_to_root_is_a_warning_where_it_is_set() {
        let refused = [Protection::ProcessesMax];
        assert_eq!(check_on(ONE, &refused), none());
        for sandbox in ["auto", "required"] {
            let set = format!("{ONE}processes_max = 20\nsandbox = '{sandbox}'\n");
            assert_eq!(check_on(&set, &[]), none());
            let (problems, warnings) = check_on(&set, &refused);
            assert_eq!((problems.len(), warnings.len()), (0, 1), "{problems:?} {warnings:?}");
            assert!(
                warnings[0].contains("`tenants.acme.backends.main.processes_max` has no effect")
            );
        }
    }

    #[test]
    fn a_write_list_that_does_not_cover_truncation_is_a_warning_and_no_required_separation() {
        let lists = format!("{ONE}write_paths = ['/srv']\n");
        let refused = [Protection::Truncation];
        let (problems, warnings) = check_on(&lists, &refused);
        assert_eq!((problems.len(), warnings.len()), (0, 1), "{problems:?} {warnings:?}");
        assert!(warnings[0].contains("emptying files"), "{warnings:?}");
        let (problems, _) = check_on(&format!("{lists}sandbox = 'required'\n"), &refused);
        assert!(problems[0].contains("`write_paths_truncation` (not here)"), "{problems:?}");
        assert_eq!(check_on(ONE, &refused), none());
    }

    #[test]
    fn a_redis_that_a_server_can_reach_needs_a_password() {
        let open = format!("store.url = 'redis://h'\n{ONE}");
        let (problems, warnings) = check_on(&open, &[]);
        assert!(problems.is_empty());
        assert!(warnings[0].contains("`store.password_file`"), "{warnings:?}");
        assert!(warnings[0].contains("`tenants.acme.backends.main.network"), "{warnings:?}");
        let confined = format!("{open}network = 'none'\n");
        assert_eq!(check_on(&confined, &[]), none());
        assert_eq!(check_on(&confined, &[Protection::Network]).1.len(), 2);
        let secret = open.replace("redis://h", "redis://:secret@h");
        assert_eq!(check_on(&secret, &[]), none());
        let native =
            "store.url = 'redis://h'\n[tenants.acme.backends.main]\nkind = 'native'\nname = 'x'\n";
        assert_eq!(check_on(native, &[]), none());
    }

    #[test]
    fn a_server_of_the_nodes_user_can_drain_a_node_whose_socket_needs_no_token() {
        let socket = format!("admin.listen = 'unix:/run/roundhouse/admin.sock'\n{ONE}");
        let (problems, warnings) = check_on(&socket, &[]);
        assert_eq!((problems.len(), warnings.len()), (0, 1), "{warnings:?}");
        assert!(warnings[0].contains("`admin.token_file`"), "{warnings:?}");
        assert!(warnings[0].contains("`tenants.acme.backends.main`"), "{warnings:?}");
        let with_token = format!("admin.token_file = '/etc/token'\n{socket}");
        assert_eq!(check_on(&with_token, &[]), none());
        let own_user = format!("{socket}user = '61234'\n");
        if rustix::process::geteuid().is_root() {
            assert_eq!(check_on(&own_user, &[]).1, [""; 0]);
        }
        let own_number = format!("{socket}user = '{}'\n", rustix::process::geteuid().as_raw());
        if rustix::process::geteuid().is_root() {
            assert_eq!(check_on(&own_number, &[]).1.len(), 1);
        }
    }

    #[test]
    fn a_bound_of_a_cgroup_needs_one() {
        let (problems, _) = check_on(&format!("{ONE}cpu_percent_max = 50\n"), &[]);
        assert!(problems[0].contains("`node.cgroup`, with the controller `cpu`"), "{problems:?}");
        let missing = [Protection::Cgroup];
        let (problems, _) = check_on(&format!("node.cgroup = '/nowhere'\n{ONE}"), &missing);
        assert!(problems[0].contains("`node.cgroup` cannot be used: not here"), "{problems:?}");
    }
}
