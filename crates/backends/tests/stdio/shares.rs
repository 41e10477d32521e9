//! The share of a tenant in the node's server processes and line bytes.

use std::time::{Duration, Instant};

use backends::stdio::{Children, ChildrenSettings, StdioBackend, StdioShares};
use backends::{Backend as _, LinkEvent};
use budget::{Budget, ShareLimits};
use protocol::SessionId;

use crate::stage::{Talk, environment, python, sh, unprotected};

/// Shares of two tenants, each with at most half.
fn shares(children: usize, bytes: usize) -> [StdioShares; 2] {
    let budget = |total| {
        let limits = ShareLimits::of_one(total, 2, usize::MAX, None);
        Budget::new(total, ["a", "b"].map(|name| (name.into(), limits)))
    };
    let (children, bytes) = (budget(children), budget(bytes));
    let share = |of: &Budget, name| of.share(name).expect("it is named");
    ["a", "b"].map(|name| StdioShares {
        children: share(&children, name),
        line_bytes: share(&bytes, name),
    })
}

fn open(settings: backends::stdio::StdioSettings, shares: &StdioShares, node: &Children) -> Talk {
    let backend =
        StdioBackend::sharing("test", settings, unprotected(), node.clone(), shares.clone());
    Talk { link: backend.open(&SessionId::parse("s").unwrap()) }
}

fn node() -> Children {
    Children::new(
        ChildrenSettings { children_max: 4, ..ChildrenSettings::default() },
        None,
        environment(),
    )
}

#[tokio::test]
async fn the_servers_of_one_tenant_leave_another_its_part() {
    let node = node();
    let [one, other] = shares(4, 1 << 20);
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut talk = open(sh("cat"), &one, &node);
        assert!(matches!(talk.next().await, Some(LinkEvent::Up)));
        running.push(talk);
    }
    let reason = open(sh("cat"), &one, &node).down().await;
    assert!(reason.contains("the tenant has as many servers as it may"), "{reason}");
    let mut talk = open(sh("cat"), &other, &node);
    assert!(matches!(talk.next().await, Some(LinkEvent::Up)), "the other tenant has its share");
    drop((running, talk));
    node.stopped().await;
    // Its place is given back a moment after a server has stopped.
    let began = Instant::now();
    while one.children.used() > 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "a place was not given back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Writes a long line without an end, and then waits.
const UNENDED: &str = r#"
import sys, time
sys.stdout.write("x" * 3_000_000)
sys.stdout.flush()
time.sleep(60)
"#;

#[tokio::test]
async fn a_long_line_waits_for_room_in_the_share_and_then_ends_its_link() {
    let node = node();
    let [one, other] = shares(4, 2 << 20);
    let begun = Instant::now();
    let mut talk = open(python(UNENDED), &one, &node);
    assert!(matches!(talk.next().await, Some(LinkEvent::Up)));
    let mut quiet = open(sh("cat"), &other, &node);
    assert!(matches!(quiet.next().await, Some(LinkEvent::Up)));
    let reason = talk.down().await;
    assert!(reason.contains("keep as many bytes as they may"), "{reason}");
    assert!(begun.elapsed().as_secs() >= 5, "the line waits for free bytes first");
    assert!(one.line_bytes.used() < 2 << 20, "little more than the share was read");
    quiet.send(r#"{"jsonrpc":"2.0","method":"x"}"#);
    assert!(quiet.next_text().await.contains("\"x\""), "the other tenant's server continues");
    drop((talk, quiet));
    node.stopped().await;
    // The task that read the line ends right after its process.
    let given_back = async {
        while one.line_bytes.used() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), given_back).await.expect("bytes are given back");
}
