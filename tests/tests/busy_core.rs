//! A node whose core other programs use: requests of a tenant that has many take turns with those of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::cores::{self, Core};
use tests::mcp::{Client, REVISIONS};
use tests::{Node, Setup, tools};
use tokio::task::JoinSet;
use tokio::time::timeout;

const DELAYED: &str = "roundhouse_front_requests_delayed_total";

/// How many calls the busy tenant has at a time.
const CALLS: usize = 16;

/// Threads that use the core of the node, and never sleep.
const OTHERS: usize = 3;

const SETTINGS: &str = "
[tenants.busy]
auth = 'open'
[tenants.busy.backends.main]
kind = 'native'
name = 'everything'
[tenants.quiet]
auth = 'open'
[tenants.quiet.backends.main]
kind = 'native'
name = 'everything'
";

#[tokio::test]
async fn requests_take_turns_only_beside_another_tenant() -> Result<()> {
    if !kernel_tells_of_waits() {
        return Ok(());
    }
    let Some((core, _)) = cores::two() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("node");
    tools::write_script(&program, &core.exec(tools::built("roundhouse")))?;
    let node = Node::start(&Setup::config(SETTINGS).program(program))?;
    let busy = Client::new(node.mcp("busy"), REVISIONS[2]).keeping_connections();
    let busy = Arc::new(busy.opened(json!({})).await?);
    let _others = Others::start(core)?;

    let (mut calls, done) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..CALLS {
        let (client, done) = (Arc::clone(&busy), Arc::clone(&done));
        calls.spawn(async move {
            loop {
                if let Err(failed) = client.tool("test_simple_text", json!({})).await {
                    return failed;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let alone = delayed(&node).await?;
    ensure!(alone == 0.0, "{alone} requests of a tenant without others waited");

    let quiet = Client::open(node.mcp("quiet"), REVISIONS[2]).await?;
    let until = Instant::now() + Duration::from_secs(30);
    while delayed(&node).await? == 0.0 {
        ensure!(Instant::now() < until, "no request waited");
        call(&quiet).await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Each call that was delayed is answered, and so are further ones.
    let until = Instant::now() + Duration::from_secs(30);
    let before = done.load(Ordering::Relaxed);
    while done.load(Ordering::Relaxed) < before + 10 * CALLS {
        ensure!(Instant::now() < until, "calls that waited were not answered");
        call(&quiet).await?;
    }
    let failed = calls.try_join_next();
    ensure!(failed.is_none(), "{failed:?}");
    Ok(())
}

/// Whether the kernel tells how long threads wait for their core.
fn kernel_tells_of_waits() -> bool {
    let told = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    told.split_whitespace().any(|number| number != "0")
}

async fn call(client: &Client) -> Result<()> {
    let called = client.tool("test_simple_text", json!({}));
    timeout(Duration::from_secs(30), called).await.context("a call took 30 s")??;
    Ok(())
}

async fn delayed(node: &Node) -> Result<f64> {
    node.metric(DELAYED).await?.context("the node has no such metric")
}

/// Programs that use a core.
struct Others {
    are_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Others {
    fn start(core: Core) -> Result<Self> {
        let mut others = Self { are_over: Arc::default(), threads: Vec::new() };
        for _ in 0..OTHERS {
            let (are_over, (enters, entered)) = (Arc::clone(&others.are_over), channel());
            others.threads.push(std::thread::spawn(move || {
                let _waits = enters.send(core.enter());
                while !are_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }));
            entered.recv()??;
        }
        Ok(others)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.are_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap_or_default());
    }
}
