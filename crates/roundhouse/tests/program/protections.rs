//! What `check` and a start say of the protections of `stdio` servers on this machine.

use super::*;

/// One tenant for each name, each with a program as its server.
fn stdio_tenants(names: &[&str]) -> String {
    let tenant = |name: &&str| {
        format!(
            "[tenants.{name}]\nauth = 'open'\n[tenants.{name}.backends.main]\nkind = 'stdio'\n\
             command = 'cat'\n"
        )
    };
    names.iter().map(tenant).collect()
}

#[test]
fn check_prints_what_the_machine_grants_to_servers() {
    let file = file(&stdio_tenants(&["acme", "beta"]));
    let (code, stdout, stderr) = run_to_exit(&["check", file.path().to_str().unwrap()]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let line = stdout.lines().find(|line| line.starts_with("protections of stdio servers"));
    let line = line.expect("a line");
    for granted in ["pid_namespace", "own_proc", "kernel_files", "no_new_privs", "call_filter"] {
        let (granting, _) = line.split_once("refused").unwrap();
        assert!(granting.contains(granted), "{line}");
    }
    assert!(line.contains("cgroup (`node.cgroup` names no delegated directory)"), "{line}");
}

#[test]
fn check_names_a_bound_of_processes_that_has_no_effect_for_root() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let check = |user: &str| {
        let text = format!("{}processes_max = 20\n{user}", stdio_tenants(&["acme"]));
        run_to_exit(&["check", file(&text).path().to_str().unwrap()])
    };
    let (code, stdout, stderr) = check("");
    assert_eq!(code, Some(0), "{stderr}");
    let warning = "`tenants.acme.backends.main.processes_max` has no effect";
    assert!(stdout.contains(warning) && stdout.contains("processes of root"), "{stdout}");
    let (_, stdout, _) = check("user = '61234'\n");
    assert!(!stdout.contains(warning), "{stdout}");
}

/// A node may be running with the same file.
#[test]
fn check_changes_nothing_in_the_directory_of_cgroups_and_a_start_prepares_it() {
    let cgroups = tempfile::tempdir().unwrap();
    std::fs::write(cgroups.path().join("cgroup.controllers"), "").unwrap();
    let of_a_server = cgroups.path().join("server-of-a-node");
    std::fs::create_dir(&of_a_server).unwrap();
    let file = file(&format!(
        "node.cgroup = '{}'\n{}",
        cgroups.path().display(),
        stdio_tenants(&["acme"])
    ));
    let path = file.path().to_str().unwrap();
    let (code, _, stderr) = run_to_exit(&["check", path]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(of_a_server.exists());
    let mut command = roundhouse(&["stdio", "--tenant", "acme", "--config", path]);
    assert!(command.stdin(Stdio::null()).output().unwrap().status.success());
    assert!(!of_a_server.exists());
}

/// Runs the program with these arguments, after a shell has removed protections of the machine.
fn on_a_machine(change: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec"])
        .arg(format!("{change}; exec \"$@\""))
        .args(["sh", env!("CARGO_BIN_EXE_roundhouse")])
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A machine that grants no user namespaces.
const NO_NAMESPACES: &str = "echo 0 > /proc/sys/user/max_user_namespaces";

/// A container whose runtime hides parts of `/proc`.
const HIDDEN_PROC: &str =
    "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys /proc/sys";

#[test]
fn in_a_container_with_a_hidden_proc_all_other_protections_are_granted() {
    let file = file(&stdio_tenants(&["acme", "beta"]));
    let (code, stdout, stderr) =
        on_a_machine(HIDDEN_PROC, &["check", file.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stderr}");
    let line = stdout.lines().find(|line| line.starts_with("protections")).expect("a line");
    let (granted, refused) = line.split_once("refused").unwrap();
    assert!(refused.contains("own_proc (Operation not permitted"), "{line}");
    for others in ["pid_namespace", "kernel_files", "call_filter"] {
        assert!(granted.contains(others), "{line}");
    }
}

#[test]
fn a_machine_without_namespaces_serves_several_tenants_only_if_that_is_written() {
    let check = |text: &str| {
        let file = file(text);
        on_a_machine(NO_NAMESPACES, &["check", file.path().to_str().unwrap()])
    };
    let (code, stdout, stderr) = check(&stdio_tenants(&["acme"]));
    assert_eq!(code, Some(0), "{stderr}");
    let line = stdout.lines().find(|line| line.starts_with("protections")).expect("a line");
    assert!(line.contains("pid_namespace (No space left on device"), "{line}");
    assert!(line.contains("own_proc (needs `pid_namespace`)"), "{line}");
    let (granted, _) = line.split_once("refused").unwrap();
    assert!(granted.contains("no_new_privs") && granted.contains("no_capabilities"), "{line}");

    let several = stdio_tenants(&["acme", "beta"]);
    let (code, _, stderr) = check(&several);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("`tenants.beta.backends.main` would share its processes"), "{stderr}");
    let (code, _, stderr) = check(&format!("node.sandbox = 'none'\n{several}"));
    assert_eq!(code, Some(0), "{stderr}");
    let (code, _, stderr) = check(&format!("node.sandbox = 'required'\n{}", stdio_tenants(&["a"])));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("`tenants.a.backends.main` must be separated"), "{stderr}");
}

/// The unit of systemd starts no node whose file `check` refuses.
#[test]
fn check_prints_warnings_and_fails_because_of_them_only_if_it_is_strict() {
    // Few connections and servers: the limit of descriptors may be low.
    let bounds = "front.connections_max = 50\nfront.workers = 1\nnode.children_max = 10\n";
    let redis = "store.url = 'redis://127.0.0.1:1'\n";
    let open = format!("{bounds}{redis}{MEMBER}{}", stdio_tenants(&["acme"]));
    let warned = file(&open);
    let (code, stdout, stderr) = run_to_exit(&["check", warned.path().to_str().unwrap()]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("warning: `store.url` names a Redis without a password"), "{stdout}");
    let (code, strict, stderr) =
        run_to_exit(&["check", "--strict", warned.path().to_str().unwrap()]);
    assert_eq!((code, strict), (Some(1), stdout));
    assert!(stderr.contains("--strict"), "{stderr}");

    let fine = file(&format!("{open}network = 'none'\n"));
    let (code, stdout, stderr) = run_to_exit(&["check", "--strict", fine.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stdout.contains("warning"), "{stdout}");
    let wrong = file("tenants.acme.auth = 'open'");
    let (code, _, stderr) = run_to_exit(&["check", wrong.path().to_str().unwrap()]);
    assert_eq!(code, Some(1), "{stderr}");
}
