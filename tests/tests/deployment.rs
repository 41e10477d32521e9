//! The deployment of an operator: the local cluster, nginx and HAProxy in front of it, and
//! restarts that no client detects.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tests::deployment::{Deployment, Plan, script};
use tests::mcp::{Client, REVISIONS};
use tests::restless::Load;
use tests::{processes, tools};

#[tokio::test]
async fn what_comes_up_goes_down_and_leaves_nothing() -> Result<()> {
    let mark = processes::mark();
    let cluster = Plan::fixture().env(processes::VARIABLE, &mark).start().await?;
    let clients = [
        Client::open(cluster.demo(), "2025-11-25").await?,
        Client::open(cluster.demo(), "2025-06-18").await?,
    ];
    for client in &clients {
        client.is_well().await?;
    }
    // Three nodes, and the watcher that ends the cluster when this process ends. Redis and nginx
    // overwrite their environment with their titles, so the test uses their process ids.
    ensure!(processes::marked(&mark, None).len() >= 4, "{:?}", processes::marked(&mark, None));
    let redis = cluster.redis()?.0;
    let nginx = cluster.read()?["nginx"]["pid"].as_u64().context("no nginx")?.try_into()?;
    cluster.down().await?;
    processes::all_gone(&mark, None, Duration::from_secs(5)).await?;
    for pid in [redis, nginx] {
        ensure!(processes::resident(pid).is_err(), "{pid} still runs");
    }
    ensure!(!cluster.folder().join("cluster.json").exists());
    // A second `down` is not an error.
    cluster.down().await
}

#[tokio::test]
async fn cluster_json_says_what_runs() -> Result<()> {
    let cluster = Plan::demo().nodes(2).start().await?;
    let json = cluster.read()?;
    ensure!(json["lb"].as_str().is_some_and(|lb| lb.starts_with("http://127.0.0.1:")), "{json}");
    ensure!(json["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2), "{json}");
    let (redis, url) = cluster.redis()?;
    ensure!(processes::resident(redis)? > 0 && url.starts_with("redis://127.0.0.1:"));
    for node in cluster.members()? {
        ensure!(processes::resident(node.pid)? > 0);
        let ready = reqwest::get(format!("{}/readyz", node.admin)).await?;
        ensure!(ready.status() == 200, "{}: {}", node.admin, ready.text().await?);
        Client::open(format!("{}/demo/mcp", node.url), "2025-11-25").await?.is_well().await?;
    }
    let before = cluster.members()?;
    cluster.restart("node2").await?;
    let after = cluster.members()?;
    ensure!(before[0].pid == after[0].pid && before[1].pid != after[1].pid, "{after:?}");
    ensure!(before[1].url == after[1].url && before[1].admin == after[1].admin, "{after:?}");
    let secret = std::fs::metadata(cluster.folder().join("secret"))?;
    ensure!(std::os::unix::fs::PermissionsExt::mode(&secret.permissions()) & 0o77 == 0);
    Ok(())
}

#[tokio::test]
async fn a_mistake_is_answered_with_its_remedy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let said = |words: &[&str], bin: &str| -> Result<String> {
        let mut command = Command::new(script());
        command.args(words).arg("--dir").arg(folder.path()).env("ROUNDHOUSE_BIN", bin);
        let output = command.stdin(Stdio::null()).output()?;
        ensure!(!output.status.success(), "{words:?} succeeds");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let bin = tools::built("roundhouse").display().to_string();
    let wrong = said(&["up"], "/nowhere/roundhouse")?;
    ensure!(wrong.contains("/nowhere/roundhouse") && wrong.contains("cargo build"), "{wrong}");
    let wrong = said(&["restart", "node1"], &bin)?;
    ensure!(wrong.contains("cluster up"), "{wrong}");
    std::fs::write(folder.path().join("wrong.toml"), "[front]\nlisen = \"127.0.0.1:1\"\n")?;
    let file = folder.path().join("wrong.toml").display().to_string();
    let wrong = said(&["up", "--config", &file], &bin)?;
    ensure!(wrong.contains("front.listen"), "{wrong}");
    let cluster = Plan::demo().nodes(1).start().await?;
    let wrong = cluster.run(&["up"]).await.expect_err("up twice").to_string();
    ensure!(wrong.contains("cluster down"), "{wrong}");
    let wrong = cluster.restart("node2").await.expect_err("no such node").to_string();
    ensure!(wrong.contains("node1"), "{wrong}");
    Ok(())
}

#[tokio::test]
async fn a_pid_that_was_given_to_somebody_else_is_left_alone() -> Result<()> {
    let cluster = Plan::demo().nodes(1).start().await?;
    let mut stranger = Command::new("sleep").arg("600").spawn()?;
    let node = cluster.members()?[0].pid;
    let file = cluster.folder().join("run/node1");
    let since = std::fs::read_to_string(&file)?;
    let since = since.split_whitespace().nth(1).context("no start time")?;
    // The kernel has given the process id of a dead node to another program.
    cluster.kill("node1").await?;
    std::fs::write(&file, format!("{} {since}1\n", stranger.id()))?;
    cluster.down().await?;
    ensure!(stranger.try_wait()?.is_none(), "a stranger was killed");
    stranger.kill()?;
    stranger.wait()?;
    ensure!(processes::resident(node).is_err(), "the node still runs");
    Ok(())
}

/// A killed node's main thread may end before the threads that own its sockets. The kernel still
/// accepts connections to these sockets, and they get no answer. So `kill` waits for all threads.
#[tokio::test]
async fn a_process_whose_main_thread_has_ended_still_runs() -> Result<()> {
    let cluster = Plan::demo().nodes(1).start().await?;
    cluster.kill("node1").await?;
    let program = "import ctypes, threading, time\n\
                   threading.Thread(target=time.sleep, args=(600,)).start()\n\
                   ctypes.CDLL(None).pthread_exit(None)";
    let mut process = Command::new("python3").args(["-c", program]).spawn()?;
    let stat = format!("/proc/{}/stat", process.id());
    let until = Instant::now() + Duration::from_secs(10);
    let since = loop {
        ensure!(Instant::now() < until, "the main thread does not end");
        let stat = std::fs::read_to_string(&stat)?;
        let fields: Vec<_> =
            stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
        if fields.first() == Some(&"Z") {
            break fields.get(19).context("no start time")?.to_string();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    std::fs::write(cluster.folder().join("run/node1"), format!("{} {since}\n", process.id()))?;
    cluster.kill("node1").await?;
    let ended = process.try_wait()?;
    process.kill()?;
    process.wait()?;
    ensure!(ended.is_some(), "its other threads still run");
    Ok(())
}

#[tokio::test]
async fn sessions_of_every_revision_live_behind_nginx() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    for revision in REVISIONS {
        lives(&cluster.demo(), revision).await?;
    }
    Ok(())
}

#[tokio::test]
async fn sessions_of_every_revision_live_behind_haproxy() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let haproxy = Haproxy::start(&cluster, "/readyz").await?;
    let scenario = async {
        for revision in REVISIONS {
            lives(&haproxy.demo, revision).await?;
        }
        // HAProxy detects by itself that a node is gone, and meanwhile tries another one.
        cluster.kill("node2").await?;
        for revision in REVISIONS {
            lives(&haproxy.demo, revision).await?;
        }
        Ok(())
    };
    let came: Result<()> = scenario.await;
    came.with_context(|| haproxy.stands())
}

/// When Redis is away for longer than a lease, no node reports that it is ready, and each node
/// holds its requests.
#[tokio::test]
async fn haproxy_asks_every_node_when_none_says_that_it_is_ready() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let haproxy = Haproxy::start(&cluster, "/never").await?;
    let until = Instant::now() + Duration::from_secs(20);
    while haproxy.stands().matches(",DOWN,").count() < 3 {
        ensure!(Instant::now() < until, "still up: {}", haproxy.stands());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let scenario = async {
        lives(&haproxy.demo, "2025-11-25").await.context("with three nodes")?;
        cluster.kill("node2").await?;
        lives(&haproxy.demo, "2025-11-25").await.context("with two nodes")
    };
    let came: Result<()> = scenario.await;
    came.with_context(|| haproxy.stands())
}

#[test]
fn what_is_shipped_for_the_balancers_is_valid() -> Result<()> {
    let haproxy_cfg = tools::root().join("deploy/haproxy/haproxy.cfg");
    haproxy(&["-c"], &haproxy_cfg)?;
    let folder = tempfile::tempdir()?;
    let shipped = tools::root().join("deploy/nginx/roundhouse.conf");
    let (file, folder) = (folder.path().join("nginx.conf"), folder.path().display());
    let main = format!(
        "pid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n\
         access_log off;\ninclude {};\n}}\n",
        shipped.display()
    );
    std::fs::write(&file, main)?;
    let output = Command::new("nginx")
        .env("PATH", format!("{}:/usr/sbin:/sbin", tools::path()))
        .args(["-t", "-e", "stderr", "-c"])
        .arg(&file)
        .output()
        .context("nginx does not start; tests/setup installs it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // Port 80 may be in use or not permitted: the test checks the syntax only.
    ensure!(said.contains("syntax is ok") && !said.contains("[warn]"), "{said}");
    Ok(())
}

// holds: SES-10
#[tokio::test]
async fn nobody_notices_a_rolling_restart_that_the_balancer_was_told_of() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let scenario = async {
        let mut load = Load::start(&cluster.demo(), 6).await?;
        for node in cluster.members()? {
            load.more(12).await?;
            cluster.restart(&node.name).await?;
        }
        load.more(12).await?;
        load.end().await
    };
    scenario.await.map(drop)
}

#[tokio::test]
async fn nobody_notices_that_one_node_after_another_is_drained() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let scenario = async {
        let mut load = Load::start(&cluster.demo(), 6).await?;
        for node in cluster.members()? {
            load.more(12).await?;
            cluster.drain(&node.name).await?;
            load.more(12).await?;
            cluster.start(&node.name).await?;
        }
        load.more(12).await?;
        load.end().await
    };
    scenario.await.map(drop)
}

/// A session with a call, a stream that is cut and resumed, and an end.
async fn lives(url: &str, revision: &str) -> Result<()> {
    let client = Client::open(url, revision).await?;
    for _ in 0..4 {
        client.is_well().await?;
    }
    let call = client.call_with_progress(
        "rh_count",
        serde_json::json!({"n": 6, "interval_ms": 30}),
        serde_json::json!("p"),
    );
    let mut events = client.stream(call).await?;
    let (block, _) = events.message().await?.context("the stream ended")?;
    drop(events);
    let mut resumed = client.resume(&block.id.context("no event id")?).await?;
    let mut last = None;
    while let Some((_, message)) = resumed.message().await? {
        last = Some(message);
    }
    let last = last.context("nothing came on the resumed stream")?;
    ensure!(last.get("result").is_some(), "{revision}: {last}");
    let ended = client.delete().await?.status();
    ensure!(ended == 204, "DELETE got {ended}");
    Ok(())
}

/// HAProxy in front of a cluster, with the file in `deploy`. It ends with its test.
struct Haproxy {
    running: Child,
    socket: PathBuf,
    /// The demo tenant's endpoint.
    demo: String,
}

impl Haproxy {
    /// Its health checks request `path`.
    async fn start(cluster: &Deployment, path: &str) -> Result<Self> {
        let shipped = std::fs::read_to_string(tools::root().join("deploy/haproxy/haproxy.cfg"))?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let socket = cluster.folder().join("haproxy.sock");
        let mut text = shipped
            .replace("bind :80", &format!("bind 127.0.0.1:{port}"))
            .replace("/run/haproxy/admin.sock", &socket.display().to_string())
            .replace("GET /readyz", &format!("GET {path}"));
        for (index, node) in cluster.members()?.iter().enumerate() {
            let (own, asked) = (format!("10.0.0.{}:8080", index + 4), "check port 9090");
            ensure!(text.contains(&format!("{own} {asked}")), "haproxy.cfg names no {own}");
            let admin = node.admin.rsplit(':').next().context("no port")?;
            text = text
                .replace(&format!("{own} {asked}"), &format!("{own} check port {admin}"))
                .replace(&own, &node.url["http://".len()..]);
        }
        let file = cluster.folder().join("haproxy.cfg");
        std::fs::write(&file, text)?;
        haproxy(&["-c"], &file)?;
        let running = haproxy_command(&["-db"], &file).spawn()?;
        let base = format!("http://127.0.0.1:{port}");
        let mut started = Self { running, socket, demo: format!("{base}/demo/mcp") };
        let until = Instant::now() + Duration::from_secs(10);
        while reqwest::get(&base).await.is_err() {
            ensure!(
                Instant::now() < until && started.running.try_wait()?.is_none(),
                "HAProxy does not start"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(started)
    }

    /// The state of each node in HAProxy, as comma separated values.
    fn stands(&self) -> String {
        let ask = || -> Result<String> {
            let mut socket = UnixStream::connect(&self.socket)?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.write_all(b"show stat\n")?;
            Ok(std::io::read_to_string(socket)?)
        };
        ask().unwrap_or_else(|error| format!("HAProxy does not report the nodes: {error}"))
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _gone = self.running.kill();
        let _status = self.running.wait();
    }
}

fn haproxy_command(words: &[&str], file: &Path) -> Command {
    let mut command = Command::new("haproxy");
    command.env("PATH", format!("{}:/usr/sbin:/sbin", tools::path()));
    command.args(words).arg("-f").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn haproxy(words: &[&str], file: &Path) -> Result<()> {
    let output = haproxy_command(words, file).stderr(Stdio::piped()).output();
    let output = output.context("HAProxy does not start; tests/setup installs it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !said.contains("WARNING"), "{said}");
    Ok(())
}
