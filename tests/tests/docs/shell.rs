//! Runs the commands of a page as a reader does who has cloned and built the repository.
//!
//! The differences to a reader: `cargo build --release` does nothing and `cargo run --release`
//! runs the program of this build, which is a debug build; the ports 8080, 9090 and 3001 are replaced
//! by free ones; `npx` and `uvx` find what `tests/setup` has installed; and some times are longer, since
//! a machine that runs all tests is slow.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tests::{nodes, processes, tools};

use crate::pages::{self, Block, Context};

/// The longest time of a group of commands.
const PATIENCE: Duration = Duration::from_secs(600);

/// What stands for `cargo` in a reader's commands.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
"build --release") ;;
"run --release") exec roundhouse ;;
"run --release -- "*) shift 3; exec roundhouse "$@" ;;
*) echo "the test knows no \`cargo $*\`" >&2; exit 1 ;;
esac
"#;

/// Runs the servers of the group `many` once: their first start reads all of their files, for which a machine that runs
/// all tests needs longer than a catalog waits for its servers.
const ONCE_BEFORE: &str = "\
for server in memory 'filesystem .'; do
    timeout 60 npx -y @modelcontextprotocol/server-$server </dev/null >/dev/null 2>&1 || true
done
";

/// What stands for `npx`, which is behind it in the path.
const NPX: &str = r#"#!/bin/sh
case "$*" in *"/inspector --cli "*) set -- "$@" --connect-timeout 90000 ;; esac
PATH=${PATH#*:} exec npx "$@"
"#;

/// Waits until a background command has printed a text, or fails with what it printed. A background
/// command has a process group of its own, which ends as a whole: `npx` does not end what it starts.
const FUNCTIONS: &str = r#"
background=
stop_background() {
    [ -n "$background" ] || return 0
    kill -TERM -- "-$background" && wait "$background" || true
    kill -KILL -- "-$background" 2>/dev/null || true
    background=
}
trap stop_background EXIT
wait_for() {
    for _ in $(seq 600); do
        ! grep -qF -- "$1" "$2" || { cat "$2"; return 0; }
        kill -0 "$background" || break
        sleep 0.1
    done
    cat "$2"; echo "it did not print: $1"; exit 1
}
"#;

/// What runs before the group `operator`: a node with the built-in demo and a token for operators.
const OPERATOR: &str = r#"
(umask 077; echo 0123456789abcdef0123456789abcdef >/etc/roundhouse/admin.token)
ROUNDHOUSE__ADMIN__TOKEN_FILE=/etc/roundhouse/admin.token setsid roundhouse serve >tmp/node.log 2>&1 &
background=$!
wait_for 'admin: http' tmp/node.log
"#;

/// A folder that looks like a clone which was built, with free ports.
struct Clone {
    folder: tempfile::TempDir,
    ports: [(u16, u16); 3],
}

impl Clone {
    fn make() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("docs-").tempdir()?;
        let root = folder.path();
        for entry in fs::read_dir(tools::root())? {
            let entry = entry?;
            let name = entry.file_name();
            if name != "target" && name != ".git" && name != "roundhouse.toml" {
                symlink(entry.path(), root.join(name))?;
            }
        }
        for made in ["target/release", "bin", "home", "tmp", "etc/roundhouse"] {
            fs::create_dir_all(root.join(made))?;
        }
        symlink(tools::built("roundhouse"), root.join("target/release/roundhouse"))?;
        symlink(tools::built("roundhouse"), root.join("bin/roundhouse"))?;
        symlink(tools::installed("node_modules"), root.join("node_modules"))?;
        for (name, text) in [("cargo", CARGO), ("npx", NPX)] {
            let program = root.join("bin").join(name);
            fs::write(&program, text)?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        }
        let ports = [(8080, nodes::port()?), (9090, nodes::port()?), (3001, nodes::port()?)];
        Ok(Self { folder, ports })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The text with the ports of this clone, and with its folder for `/etc/roundhouse`.
    fn own(&self, text: &str) -> String {
        let etc = self.path().join("etc/roundhouse").display().to_string();
        let text = text.replace("/etc/roundhouse", &etc);
        self.ports.iter().fold(text, |text, (written, own)| {
            let text = text.replace(&format!(":{written}"), &format!(":{own}"));
            text.replace(&format!("PORT={written}"), &format!("PORT={own}"))
        })
    }

    /// A command with the environment of a reader.
    fn command(&self, program: &str) -> Command {
        let root = self.path();
        let mut command = Command::new(program);
        command.current_dir(root).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ROUNDHOUSE") || name == "XDG_STATE_HOME" {
                command.env_remove(name);
            }
        }
        let bin = root.join("bin").display().to_string();
        let uv = tools::installed("uv/bin").display().to_string();
        command.env("PATH", format!("{bin}:{uv}:{}:/usr/sbin:/sbin", tools::path()));
        command.env("HOME", root.join("home")).env("TMPDIR", root.join("tmp"));
        let [(_, clients), (_, operators), _] = self.ports;
        command.env("ROUNDHOUSE__FRONT__LISTEN", format!("127.0.0.1:{clients}"));
        command.env("ROUNDHOUSE__ADMIN__LISTEN", format!("127.0.0.1:{operators}"));
        // A machine that runs all tests delays a node for seconds.
        for (key, ms) in
            [("CLUSTER__LEASE", 20_000), ("CLUSTER__CONNECT", 5_000), ("STORE__TIMEOUT", 5_000)]
        {
            command.env(format!("ROUNDHOUSE__{key}_MS"), ms.to_string());
        }
        // No test needs a registry.
        command.env("npm_config_offline", "true").env("npm_config_update_notifier", "false");
        command.env("UV_OFFLINE", "1").env("UV_CACHE_DIR", tools::installed("uv-cache"));
        let passed = "UV_CACHE_DIR,npm_config_offline,npm_config_update_notifier";
        command.env("ROUNDHOUSE__NODE__PASS_ENV", passed);
        command
    }
}

/// Runs every group of commands of a page.
pub(crate) fn run_page(page: &str) -> Result<()> {
    let blocks = pages::blocks_of(page, &pages::read(page)?)?;
    let mut groups: Vec<&str> = blocks.iter().filter_map(group_of).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let blocks: Vec<&Block> =
            blocks.iter().filter(|block| group_of(block) == Some(group)).collect();
        run_group(group, &blocks).with_context(|| format!("{page}, group `{group}`"))?;
    }
    Ok(())
}

/// The group to which the block belongs.
fn group_of(block: &Block) -> Option<&str> {
    match &block.context {
        Context::Run { group }
        | Context::Background { group, .. }
        | Context::Printed { group }
        | Context::File { group, .. }
        | Context::Compared { group, .. } => Some(group),
        _ => None,
    }
}

fn run_group(group: &str, blocks: &[&Block]) -> Result<()> {
    let clone = Clone::make()?;
    let mark = processes::mark();
    let mut script = format!("set -euo pipefail\n{FUNCTIONS}");
    match group {
        "operator" => script.push_str(&clone.own(OPERATOR)),
        "many" => script.push_str(ONCE_BEFORE),
        _ => {}
    }
    let mut runs = false;
    for block in blocks {
        let (place, text) = (block.place(), clone.own(&block.text));
        match &block.context {
            Context::Run { .. } => {
                script.push_str(&format!("echo '--- {place}'\n{text}\n"));
                runs = true;
            }
            Context::Background { until, .. } => {
                let log = clone.path().join(format!("tmp/{}.log", block.line));
                let log = log.display();
                // `exec`, so that the process group has the id that the shell knows.
                script.push_str(&format!(
                    "echo '--- {place}'\nstop_background\n: >{log}\nexec 8>>{log}\n\
                     ( exec setsid {text} ) >&8 2>&8 8>&- &\nbackground=$!\nexec 8>&-\n\
                     wait_for '{until}' {log}\n"
                ));
                runs = true;
            }
            Context::File { path, is_checked, .. } => {
                write_file(&clone, path, &text)?;
                if *is_checked && block.language == "toml" {
                    check(block, &block.text, &[])?;
                }
            }
            _ => {}
        }
    }
    ensure!(runs, "the group `{group}` has no commands");
    let output = run(&clone, &mark, &script)?;
    for block in blocks {
        match &block.context {
            Context::Printed { .. } => {
                for line in clone.own(&block.text).lines() {
                    let is_printed = output.lines().any(|printed| pages::fits(line, printed));
                    ensure!(is_printed, "{}: not printed: {line}\n{output}", block.place());
                }
            }
            Context::Compared { path, .. } => {
                let file = fs::read_to_string(clone.path().join(path)).context(path.clone())?;
                ensure!(file.starts_with(&block.text), "{}: {path} is\n{file}", block.place());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a snippet into its file.
fn write_file(clone: &Clone, path: &str, text: &str) -> Result<()> {
    let file = clone.path().join(path);
    fs::create_dir_all(file.parent().context("a file has a folder")?)?;
    fs::write(&file, text)?;
    let is_private = path.ends_with(".env");
    fs::set_permissions(&file, fs::Permissions::from_mode(if is_private { 0o600 } else { 0o644 }))?;
    Ok(())
}

/// Runs the script, and returns what it printed. No process of it is left afterwards.
fn run(clone: &Clone, mark: &str, script: &str) -> Result<String> {
    let (file, printed) = (clone.path().join("tmp/script"), clone.path().join("tmp/printed"));
    fs::write(&file, script)?;
    let cluster = tools::root().join("deploy/local/cluster");
    let folder = clone.path().join("target/cluster");
    let down = || Command::new(&cluster).args(["down", "--now", "--dir"]).arg(&folder).status();
    // Ends the cluster of the page also if this process is killed.
    let mut watcher = Command::new("setsid");
    watcher.args([
        "bash",
        "-c",
        r#"tail --pid="$0" -f /dev/null; exec "$1" down --now --dir "$2""#,
    ]);
    watcher.arg(std::process::id().to_string()).arg(&cluster).arg(&folder);
    watcher.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;

    let output = fs::File::create(&printed)?;
    let mut shell = clone.command("bash");
    shell.arg(&file).env(processes::VARIABLE, mark);
    let mut shell = shell.stderr(output.try_clone()?).stdout(output).spawn()?;
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = shell.try_wait()? {
            break Some(status);
        }
        if Instant::now() > until {
            shell.kill()?;
            shell.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let mut printed = String::from_utf8_lossy(&fs::read(&printed)?).into_owned();
    down()?;
    if !status.is_some_and(|status| status.success()) {
        for node in ["node1", "node2", "node3"] {
            let log = fs::read_to_string(folder.join(format!("{node}.log"))).unwrap_or_default();
            printed.push_str(&format!("--- {node}\n{log}"));
        }
    }
    match status {
        Some(status) if status.success() => Ok(printed),
        Some(status) => bail!("the commands fail, {status}:\n{printed}"),
        None => bail!("the commands did not end in {} s:\n{printed}", PATIENCE.as_secs()),
    }
}

/// Runs `roundhouse check` on a snippet, to which it adds a tenant if there is none.
pub(crate) fn check(block: &Block, text: &str, env: &[(&str, String)]) -> Result<()> {
    const TENANT: &str = "\n[tenants.a]\nauth = \"open\"\n[tenants.a.backends.b]\n\
                          kind = \"stdio\"\ncommand = \"cat\"\n";
    let clone = Clone::make()?;
    let mut text = text.to_owned();
    if !text.contains("[tenants.") {
        text.push_str(TENANT);
    }
    for (from, to) in files(&clone)? {
        text = text.replace(&from, &to);
    }
    fs::write(clone.path().join("roundhouse.toml"), &text)?;
    let mut command = clone.command("roundhouse");
    // The addresses of the snippet are to be checked, and not those of the test.
    command.env_remove("ROUNDHOUSE__FRONT__LISTEN").env_remove("ROUNDHOUSE__ADMIN__LISTEN");
    for key in ["NODE__PASS_ENV", "CLUSTER__LEASE_MS", "CLUSTER__CONNECT_MS", "STORE__TIMEOUT_MS"] {
        command.env_remove(format!("ROUNDHOUSE__{key}"));
    }
    command.args(["check", "roundhouse.toml"]).envs(env.iter().map(|(key, value)| (key, value)));
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}\n{text}", block.place());
    Ok(())
}

/// Files and folders that the pages name, and what stands for them here.
fn files(clone: &Clone) -> Result<Vec<(String, String)>> {
    let made = clone.path().join("made");
    fs::create_dir_all(made.join("acme"))?;
    let issued = rcgen::generate_simple_self_signed(vec!["10.0.0.4".to_owned()])?;
    let write = |name: &str, text: String| -> Result<PathBuf> {
        let path = made.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path)
    };
    let certificate = issued.cert.pem();
    let files = [
        ("/etc/roundhouse/nodes-ca.pem", write("ca.pem", certificate.clone())?),
        ("/etc/roundhouse/node.pem", write("node.pem", certificate)?),
        ("/etc/roundhouse/node.key", write("node.key", issued.signing_key.serialize_pem())?),
        ("everything.env", write("everything.env", "API_KEY=the secret\n".to_owned())?),
        ("/srv/acme", made.join("acme")),
    ];
    Ok(files.map(|(from, to)| (from.to_owned(), to.display().to_string())).into())
}
