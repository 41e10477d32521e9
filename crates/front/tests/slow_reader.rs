//! A client that stops reading. A separate program, since it counts the connections of its process.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "made for all tests of this crate")]
mod kit;

use std::time::Duration;

use crate::kit::session::{Session, call};
use crate::kit::{Wire, node, parrot, request};
use serde_json::json;

#[actix_rt::test]
async fn a_client_that_stops_reading_loses_its_connection() {
    let node = node(parrot::backends(), |settings| settings.write_timeout_secs = 1);
    let session = Session::begin(&node.running, "2025-11-25").await;
    let admin = format!("http://{}/metrics", node.running.admin_address());
    let count = async || {
        let metrics = reqwest::get(&admin).await.unwrap().text().await.unwrap();
        let line = metrics.lines().find(|line| line.starts_with("roundhouse_front_connections "));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };

    let mut wire = Wire::open(&node.running).await;
    let headers = format!("{}Mcp-Session-Id: {}\r\n", crate::kit::POLITE, session.id);
    let big = call(1, "big", json!({ "bytes": 15 << 20 })).to_string();
    wire.send(request("POST /demo/mcp", &headers, &big)).await;
    wire.0.readable().await.unwrap();
    assert_eq!(count().await, 2, "the session's connection, and the one that is not read");

    // The kernel's timeout ends the wait, after about a second.
    let gone = async { while count().await > 1 {} };
    tokio::time::timeout(Duration::from_secs(20), gone).await.expect("still open");
}
