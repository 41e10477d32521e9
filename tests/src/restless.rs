//! Sessions that work without a pause: calls, streams that are resumed after each early end,
//! server requests and their answers, until the test ends the load. Every failure fails the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::mcp::{self, Client};
use crate::sse::Events;

/// The maximum number of resumes of a stream; more than that fail the test.
const RESUMES_MAX: usize = 20;

/// The maximum time of a few turns.
const STANDSTILL: Duration = Duration::from_secs(40);

/// A running load.
#[derive(Debug)]
pub struct Load {
    sessions: JoinSet<Result<()>>,
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
}

impl Load {
    /// Opens this number of sessions at an endpoint, and starts their work.
    pub async fn start(url: &str, sessions: usize) -> Result<Self> {
        let (is_over, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut running = JoinSet::new();
        for session in 0..sessions {
            let capabilities = json!({ "elicitation": {} });
            let client = Client::open_with(url, "2025-11-25", capabilities).await?;
            let (is_over, done) = (Arc::clone(&is_over), Arc::clone(&done));
            running.spawn(async move {
                let mut turn = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let work = work(&client, turn).await;
                    work.with_context(|| format!("session {session}, turn {turn}"))?;
                    done.fetch_add(1, Ordering::Relaxed);
                    turn += 1;
                }
                let gone = client.delete().await?.status();
                ensure!(gone == 204, "DELETE got {gone}");
                Ok(())
            });
        }
        Ok(Self { sessions: running, is_over, done })
    }

    /// The number of turns so far.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits for this number of further turns, or until a session fails.
    pub async fn more(&mut self, turns: usize) -> Result<()> {
        let until = self.done() + turns;
        let done = Arc::clone(&self.done);
        let wait = async {
            while done.load(Ordering::Relaxed) < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = wait => Ok(()),
            Some(ended) = self.sessions.join_next() => ended?.context("the load fails"),
            () = tokio::time::sleep(STANDSTILL) => bail!("the load makes no progress"),
        }
    }

    /// Ends the load; fails with the first failure of any of its sessions.
    pub async fn end(mut self) -> Result<usize> {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.sessions.join_next().await {
            ended?.context("the load fails")?;
        }
        Ok(self.done())
    }
}

async fn work(client: &Client, turn: usize) -> Result<()> {
    match turn % 4 {
        0 => {
            let call = client.call_with_progress(
                "rh_count",
                json!({"n": 20, "interval_ms": 40}),
                json!(format!("t{turn}")),
            );
            let steps = steps(&follow(client, call).await?);
            let all: Vec<f64> = (1..=20).map(f64::from).collect();
            ensure!(steps == all, "progress: {steps:?}");
        }
        1 => {
            let seen = follow(client, client.call("rh_ask", json!({ "times": 2 }))).await?;
            let word = seen.last().context("nothing seen")?;
            ensure!(word.get("result").is_some(), "a call with questions: {word}");
        }
        _ => {
            let said = client.tool("rh_echo", json!({ "turn": turn })).await?;
            ensure!(said["structuredContent"]["turn"] == turn, "an echo: {said}");
        }
    }
    Ok(())
}

/// Calls a tool, answers its questions, and resumes its stream after each early end; returns every
/// message up to the final response.
pub async fn follow(client: &Client, call: Value) -> Result<Vec<Value>> {
    let id = call["id"].clone();
    let response = client.send(call).await?;
    ensure!(response.status() == 200, "a call got {}", response.status());
    let kind = response.headers().get("content-type").context("no content type")?;
    if kind.to_str()?.starts_with("application/json") {
        return Ok(vec![response.json().await?]);
    }
    let mut events = Events::of(response)?;
    let (mut seen, mut cursor, mut retry) = (Vec::new(), None, 1000);
    for _ in 0..RESUMES_MAX {
        while let Some(block) = events.next().await? {
            retry = block.retry.unwrap_or(retry);
            let message = block.message();
            cursor = block.id.or(cursor);
            let Some(message) = message else { continue };
            if message["method"] == "elicitation/create" {
                let answer = json!({ "action": "accept", "content": {} });
                let status = client.answer(&message["id"], answer).await?.status();
                ensure!(status == 202, "the POST of an answer got {status}");
            }
            let is_last = mcp::is_response(&message) && message["id"] == id;
            seen.push(message);
            if is_last {
                return Ok(seen);
            }
        }
        let cursor = cursor.as_deref().context("a stream ended before its first event id")?;
        tokio::time::sleep(Duration::from_millis(retry)).await;
        events = client.resume(cursor).await.with_context(|| format!("resuming after {cursor}"))?;
    }
    bail!("resumed {RESUMES_MAX} times: {seen:?}")
}

fn steps(seen: &[Value]) -> Vec<f64> {
    seen.iter().filter_map(|message| message["params"]["progress"].as_f64()).collect()
}
