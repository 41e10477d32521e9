//! Tenants are added, changed and removed while a node runs.

#![expect(clippy::print_stdout, reason = "the figures are what one test is run for")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use tests::mcp::{Client, final_response};
use tests::{Node, Setup, processes, tools};
use tokio::time::{sleep, timeout};

#[path = "reload/bounds.rs"]
mod bounds;
#[path = "reload/folder.rs"]
mod folder;
#[path = "reload/idle.rs"]
mod idle;
#[path = "reload/lists.rs"]
mod lists;
#[path = "reload/one_backend.rs"]
mod one_backend;
#[path = "reload/secrets.rs"]
mod secrets;

const NEWEST: &str = "2025-11-25";

/// How long a change may take to be applied: several times the interval at which the node reads the
/// file.
const APPLIED: Duration = Duration::from_secs(20);

/// A tenant whose server runs in the node.
fn native(name: &str) -> String {
    format!(
        "[tenants.{name}]\nauth = 'open'\n[tenants.{name}.backends.main]\nkind = 'native'\n\
         name = 'everything'\n\n"
    )
}

/// A tenant whose server is a program that answers `initialize` with this name.
fn program(name: &str, version: &str) -> String {
    let server = format!(
        "import sys, json\n\
         for line in sys.stdin:\n    \
             message = json.loads(line)\n    \
             if 'id' not in message: continue\n    \
             info = {{'name': 'named', 'version': '{version}'}}\n    \
             result = {{'protocolVersion': '2025-11-25', 'capabilities': {{}}, 'serverInfo': info}}\n    \
             answer = {{'jsonrpc': '2.0', 'id': message['id'], 'result': result}}\n    \
             print(json.dumps(answer), flush=True)\n"
    );
    let server = json!(server);
    format!(
        "[tenants.{name}]\nauth = 'open'\n[tenants.{name}.backends.main]\nkind = 'stdio'\n\
         command = 'python3'\nargs = ['-c', {server}]\n\n"
    )
}

/// So many tenants whose servers are programs.
fn programs(count: usize) -> String {
    (0..count).map(|number| program(&format!("t{number}"), "one")).collect()
}

/// Writes the settings of a node again.
fn write(node: &Node, text: &str) -> Result<()> {
    // As editors and tools do: a new file takes the place of the old one.
    let (file, new) = (node.config_file(), node.config_file().with_extension("new"));
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(&new, &file)?)
}

/// Waits until the node answers `initialize` of the tenant with this status.
async fn answers(node: &Node, tenant: &str, status: u16) -> Result<()> {
    let answered = async {
        loop {
            let mut client = Client::new(node.mcp(tenant), NEWEST);
            let params = client.introduction(json!({}));
            let response = client.send(client.message("initialize", params)).await?;
            if response.status() == status {
                return anyhow::Ok(());
            }
            client.session = None;
            sleep(Duration::from_millis(50)).await;
        }
    };
    let within = timeout(APPLIED, answered).await;
    within.with_context(|| format!("{tenant} was not answered {status}:\n{}", node.output()))?
}

async fn readyz(node: &Node) -> Result<(u16, String)> {
    let response = reqwest::get(format!("{}/readyz", node.admin)).await?;
    Ok((response.status().as_u16(), response.text().await?))
}

/// Waits until a metric has this value, or more.
async fn reaches(node: &Node, metric: &str, value: f64) -> Result<()> {
    let reached = async {
        while node.metric(metric).await?.is_none_or(|now| now < value) {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let within = timeout(APPLIED, reached).await;
    within.with_context(|| format!("{metric} did not reach {value}:\n{}", node.output()))?
}

/// Writes a file with one variable, which only its owner may read.
fn write_secret(file: &Path, name: &str, value: &str) -> Result<()> {
    std::fs::write(file, format!("{name}={value}\n"))?;
    Ok(std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?)
}

fn version(client: &Client) -> &str {
    client.welcome["serverInfo"]["version"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_tenant_is_added_changed_and_removed_without_a_restart() -> Result<()> {
    let before = native("kept") + &native("removed") + &program("changed", "one");
    let node = Node::start(&Setup::config(before).with("node.reload_secs", 1))?;
    let kept = Client::open(node.mcp("kept"), NEWEST).await?;
    let changed = Client::open(node.mcp("changed"), NEWEST).await?;
    let leaving = Client::open(node.mcp("removed"), NEWEST).await?;
    let slow = leaving.call("rh_sleep", json!({ "ms": 4_000 }));
    let slow = leaving.send(slow).await?;

    write(&node, &(native("kept") + &native("added") + &program("changed", "two")))?;
    answers(&node, "added", 200).await?;
    answers(&node, "removed", 404).await?;
    // A call in flight is finished, then the sessions of a removed tenant end.
    let message = final_response(slow).await?;
    ensure!(message.get("result").is_some(), "{message}");
    let over = async {
        loop {
            let ping = leaving.message("ping", json!({}));
            if leaving.send(ping).await?.status() == 404 {
                return anyhow::Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(APPLIED, over).await.context("the session of a removed tenant goes on")??;

    // Sessions keep the server that they began with; new ones have the new server.
    ensure!(version(&changed) == "one", "{}", changed.welcome);
    let ping = changed.message("ping", json!({}));
    ensure!(changed.send(ping).await?.status() == 200);
    let newer = Client::open(node.mcp("changed"), NEWEST).await?;
    ensure!(version(&newer) == "two", "{}", newer.welcome);
    let ping = kept.message("ping", json!({}));
    ensure!(kept.send(ping).await?.status() == 200);

    // A tenant that was removed comes back.
    write(&node, &(native("kept") + &native("removed")))?;
    answers(&node, "removed", 200).await?;
    answers(&node, "changed", 404).await
}

#[tokio::test]
async fn a_bad_file_leaves_what_runs_and_the_node_says_why() -> Result<()> {
    let node = Node::start(&Setup::config(native("one")).with("node.reload_secs", 1))?;
    for bad in ["[tenants.one", "[tenants.two]\nauth = 'open'\n", "[front]\nlisen = 'x'\n"] {
        let text = if bad.contains("one") { bad.to_owned() } else { native("one") + bad };
        write(&node, &text)?;
        let said = async {
            loop {
                let (status, text) = readyz(&node).await?;
                if status == 200 && text.contains("remark: ") && text.contains("settings") {
                    return anyhow::Ok(());
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(APPLIED, said).await.with_context(|| node.output())??;
        answers(&node, "one", 200).await?;
        answers(&node, "two", 404).await?;
        write(&node, &(native("one") + &native("two")))?;
        answers(&node, "two", 200).await?;
        // Clients find the tenant a moment before the remark is taken back.
        let taken_back = async {
            while readyz(&node).await?.1.contains("remark") {
                sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        timeout(APPLIED, taken_back).await.with_context(|| node.output())??;
        write(&node, &native("one"))?;
        answers(&node, "two", 404).await?;
    }
    let refused = "roundhouse_settings_reloads_total{outcome=\"refused\"}";
    ensure!(node.metric(refused).await? == Some(3.0), "{:?}", node.metric(refused).await);
    let output = node.output();
    ensure!(output.contains("front.lisen") && output.contains("front.listen"), "{output}");
    Ok(())
}

#[tokio::test]
async fn a_secret_that_changed_while_the_file_was_bad_reaches_new_sessions() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let secrets = folder.path().join("secrets.env");
    let rotate = |version: &str| write_secret(&secrets, "VERSION", version);
    rotate("one")?;
    let tenant = program("secret", "' + __import__('os').environ['VERSION'] + '");
    let good = format!("{tenant}env_file = {secrets:?}\n");
    let node = Node::start(&Setup::config(good.clone()).with("node.reload_secs", 1))?;
    let client = Client::open(node.mcp("secret"), NEWEST).await?;
    ensure!(version(&client) == "one", "{}", client.welcome);
    write(&node, &format!("{good}[tenants.lacks_a_server]\nauth = 'open'\n"))?;
    // The node refuses the file, and then reads the changed secret with it.
    let refused = async {
        while !readyz(&node).await?.1.contains("remark: ") {
            sleep(Duration::from_millis(50)).await;
        }
        rotate("two")?;
        while node.metric("roundhouse_settings_reloads_total").await? < Some(2.0) {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(APPLIED, refused).await.with_context(|| node.output())??;
    write(&node, &good)?;
    let applied = async {
        while version(&Client::open(node.mcp("secret"), NEWEST).await?) != "two" {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(APPLIED, applied).await.with_context(|| node.output())?
}

#[tokio::test]
async fn a_hangup_signal_reads_the_settings_and_ends_no_node() -> Result<()> {
    // The node does not read the file by itself.
    let node = Node::start(&Setup::config(native("one")).with("node.reload_secs", 0))?;
    write(&node, &(native("one") + &native("two")))?;
    sleep(Duration::from_secs(3)).await;
    answers(&node, "two", 404).await?;
    node.signal(Signal::HUP)?;
    answers(&node, "two", 200).await?;
    // Also a node without a file goes on.
    let demo = Node::start(&Setup::demo())?;
    demo.signal(Signal::HUP)?;
    sleep(Duration::from_millis(300)).await;
    answers(&demo, "demo", 200).await
}

#[tokio::test]
async fn a_change_of_other_settings_is_named_and_needs_a_restart() -> Result<()> {
    let node = Node::start(&Setup::config(native("one")).with("node.reload_secs", 1))?;
    write(&node, &(format!("[sessions]\nidle_secs = 77\n{}", native("one") + &native("two"))))?;
    answers(&node, "two", 200).await?;
    node.logs("sessions.idle_secs").await?;
    node.logs("restart").await
}

#[tokio::test]
async fn servers_that_wait_with_a_former_secret_end_when_it_is_replaced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let secrets = folder.path().join("secrets.env");
    let [one, two, three] = [(); 3].map(|()| processes::mark());
    write_secret(&secrets, processes::VARIABLE, &one)?;
    let limits = "warm = 1\n\n[tenants.warm.limits]\nchildren_max = 2\n\n";
    let warm = program("warm", "any");
    let warm = format!("{}\nenv_file = {secrets:?}\n{limits}", warm.trim_end());
    let setup = Setup::config(native("other") + &warm).with("node.reload_secs", 1);
    let node = Node::start(&setup)?;
    let started = async |mark: &str| {
        let started = async {
            while processes::marked(mark, None).is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(APPLIED, started).await.with_context(|| node.output())
    };
    started(&one).await?;
    for (former, new) in [(&one, &two), (&two, &three)] {
        write_secret(&secrets, processes::VARIABLE, new)?;
        started(new).await?;
        processes::all_gone(former, None, APPLIED).await?;
    }
    // No former server has the place of another one.
    Client::open(node.mcp("warm"), NEWEST).await?;
    write(&node, &native("other"))?;
    answers(&node, "warm", 404).await?;
    processes::all_gone(&three, None, APPLIED).await
}

#[tokio::test]
async fn an_added_tenant_starts_no_more_servers_than_it_may() -> Result<()> {
    let node = Node::start(&Setup::config(native("one")).with("node.reload_secs", 1))?;
    let limits = "[tenants.added.limits]\nchildren_max = 1\n";
    write(&node, &(native("one") + &program("added", "any") + limits))?;
    answers(&node, "added", 200).await?;
    // The client of that answer has left its session, which keeps its server.
    let second = Client::open(node.mcp("added"), NEWEST).await;
    ensure!(second.is_err(), "a second server was started");
    ensure!(node.metric("roundhouse_child_starts_total").await? == Some(1.0));
    Ok(())
}

#[tokio::test]
async fn requests_of_an_added_tenant_are_counted_with_those_of_other_tenants() -> Result<()> {
    let node = Node::start(&Setup::config(native("one")).with("node.reload_secs", 1))?;
    let counted = "roundhouse_tenant_requests_total{outcome=\"result\",tenant=\"other tenants\"}";
    ensure!(node.metric(counted).await?.is_none(), "there is no other tenant yet");
    write(&node, &(native("one") + &native("added")))?;
    answers(&node, "added", 200).await?;
    reaches(&node, counted, 1.0).await
}

#[tokio::test]
async fn a_reload_logs_what_an_operator_should_change_but_only_once() -> Result<()> {
    let node = Node::start(&Setup::config(native("one")).with("node.reload_secs", 1))?;
    let lacks = "[tenants.lacks]\nauth = 'open'\n[tenants.lacks.backends.main]\nkind = 'stdio'\n\
                 command = 'no-such-program'\n\n";
    write(&node, &(native("one") + lacks))?;
    let advice = "`tenants.lacks.backends.main.command` is";
    node.logs(advice).await?;
    write(&node, &(native("one") + lacks + &native("two")))?;
    answers(&node, "two", 200).await?;
    reaches(&node, "roundhouse_settings_reloads_total{outcome=\"applied\"}", 2.0).await?;
    ensure!(node.output().matches(advice).count() == 1, "{}", node.output());
    Ok(())
}

#[tokio::test]
async fn sessions_of_a_tenant_that_comes_back_outlive_its_removal() -> Result<()> {
    let all = native("kept") + &native("back");
    let node = Node::start(&Setup::config(all.clone()).with("node.reload_secs", 1))?;
    let former = Client::open(node.mcp("back"), NEWEST).await?;
    // As long as this call runs, the removal does.
    let slow = former.send(former.call("rh_sleep", json!({ "ms": 6_000 }))).await?;
    write(&node, &native("kept"))?;
    answers(&node, "back", 404).await?;
    write(&node, &all)?;
    answers(&node, "back", 200).await?;
    let newer = Client::open(node.mcp("back"), NEWEST).await?;
    let message = final_response(slow).await?;
    ensure!(message.get("result").is_some(), "{message}");
    newer.is_well().await
}

/// Of 1,000 tenants one changes, while another is called all the time.
#[tokio::test]
async fn long_a_thousand_tenants_load_fast_and_one_of_them_changes_without_a_lost_call()
-> Result<()> {
    let all = programs(1_000);
    let called = native("called");
    let setup = Setup::config(all.clone() + &called).with("node.reload_secs", 1);
    // The release may have to be built.
    let setup = setup.program(tools::released("roundhouse"));
    let began = Instant::now();
    let node = Node::start(&setup)?;
    let loaded = began.elapsed();
    let client = Client::open(node.mcp("called"), NEWEST).await?;
    let changed = all.replacen("'one'", "'two'", 1);
    ensure!(changed != all, "the text of the first tenant was not found");
    write(&node, &(changed + &called))?;
    let began = Instant::now();
    let mut calls = 0;
    loop {
        let call = client.call("test_simple_text", json!({}));
        let message = final_response(client.send(call).await?).await?;
        ensure!(message.get("result").is_some(), "{message}");
        calls += 1;
        if calls % 20 == 0 {
            let newer = Client::open(node.mcp("t0"), NEWEST).await?;
            if version(&newer) == "two" {
                break;
            }
        }
        ensure!(began.elapsed() < APPLIED, "not applied:\n{}", node.output());
    }
    let applied = began.elapsed();
    println!("1,000 tenants: loaded in {loaded:?}, one changed in {applied:?}, {calls} calls");
    ensure!(loaded < Duration::from_secs(2), "loaded in {loaded:?}");
    // The node reads the file once a second, and has one second for the change.
    ensure!(applied < Duration::from_secs(2), "applied in {applied:?}");
    Ok(())
}
