//! Widely used clients, behind nginx with three nodes, while nodes are replaced or die. The tests
//! of rmcp's client, which is not a program, are in `clients_rmcp`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::deployment::{Deployment, Plan};
use tests::program::{Playing, Program, Seen};

const ALL: [Program; 5] = [
    Program::TypeScript1,
    Program::TypeScript2,
    Program::Python1,
    Program::Python2,
    Program::FastMcp,
];

/// A cluster, and all clients, which use it.
struct Stage {
    playing: Vec<Playing>,
    goes_on: PathBuf,
    cluster: Deployment,
}

impl Stage {
    async fn set(scenario: &str) -> Result<Self> {
        let cluster = Plan::demo().start().await?;
        let goes_on = cluster.folder().join("goes-on");
        std::fs::write(&goes_on, "")?;
        let start = |program: Program| program.start(&cluster.demo(), scenario, &goes_on);
        let playing = ALL.into_iter().map(start).collect::<Result<_>>()?;
        Ok(Self { playing, goes_on, cluster })
    }

    /// Begins what all clients wait for.
    fn begin(&self) -> Result<()> {
        Ok(std::fs::write(self.goes_on.with_extension("begun"), "")?)
    }

    /// Waits until every client has printed this number of further lines of a kind.
    async fn all_see(&mut self, kind: &str, more: usize) -> Result<()> {
        for playing in &mut self.playing {
            let sees = playing.sees(kind, more).await;
            sees.with_context(|| format!("{:?}", playing.program))?;
        }
        Ok(())
    }

    /// Waits until every client has printed this number of lines of a kind since the start.
    async fn all_have_seen(&mut self, kind: &str, due: usize) -> Result<()> {
        for playing in &mut self.playing {
            let seen = playing.has_seen(kind, due).await;
            seen.with_context(|| format!("{:?}", playing.program))?;
        }
        Ok(())
    }

    /// Ends the test, and checks the lines of every client.
    async fn end(self, judge: impl Fn(&Seen) -> Result<()>) -> Result<()> {
        std::fs::remove_file(&self.goes_on)?;
        for playing in self.playing {
            let program = playing.program;
            let seen = playing.end().await.with_context(|| format!("{program:?}"))?;
            judge(&seen).with_context(|| format!("{program:?}: {:?}", seen.tail()))?;
        }
        Ok(())
    }
}

// holds: SES-10, SSE-07
#[tokio::test]
async fn every_client_holds_its_session_through_a_rolling_restart() -> Result<()> {
    let mut stage = Stage::set("hold").await?;
    stage.all_have_seen("turn", 1).await?;
    for node in stage.cluster.members()? {
        stage.cluster.restart(&node.name).await?;
        stage.all_see("turn", 1).await?;
    }
    stage
        .end(|seen| {
            let turns = seen.all("turn").len();
            for turn in 0..turns {
                counted(seen, &json!(turn), 10)?;
            }
            seen.one("terminated").map(drop)
        })
        .await
}

#[tokio::test]
async fn every_client_that_was_idle_holds_its_session_when_nodes_are_killed() -> Result<()> {
    let mut stage = Stage::set("idle").await?;
    stage.all_have_seen("turn", 1).await?;
    for name in ["node1", "node2"] {
        stage.cluster.kill(name).await?;
        stage.cluster.start(name).await?;
    }
    stage.cluster.kill("node3").await?;
    stage
        .end(|seen| {
            let text = &seen.one("after")?["text"];
            ensure!(text == "This is a simple text response for testing.", "{text}");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn every_client_on_a_stream_that_said_an_id_holds_its_session_when_the_first_node_is_killed()
-> Result<()> {
    killed_in_mid_stream("node1").await
}

#[tokio::test]
async fn every_client_on_a_stream_that_said_an_id_holds_its_session_when_the_second_node_is_killed()
-> Result<()> {
    killed_in_mid_stream("node2").await
}

#[tokio::test]
async fn every_client_on_a_stream_that_said_an_id_holds_its_session_when_the_third_node_is_killed()
-> Result<()> {
    killed_in_mid_stream("node3").await
}

async fn killed_in_mid_stream(node: &str) -> Result<()> {
    let mut stage = Stage::set("long").await?;
    // Some take seconds longer to start than others.
    stage.all_have_seen("ready", 1).await?;
    stage.begin()?;
    stage.all_have_seen("progress", 5).await?;
    stage.cluster.kill(node).await?;
    let end = stage.end(|seen| {
        // A call that ran on that node is not run again: its tool does not permit that.
        if seen.all("error").is_empty() {
            counted(seen, &json!(null), 60)?;
        } else {
            ensure!(seen.one("error")?["code"] == -32000, "{seen:?}");
        }
        seen.one("after").map(drop)
    });
    end.await.with_context(|| format!("{node} was killed"))
}

/// The steps of a call come once each, in order, and then its result.
fn counted(seen: &Seen, who: &serde_json::Value, steps: u32) -> Result<()> {
    let mine = |kind| seen.all(kind).into_iter().filter(|line| line["who"] == *who);
    let saw: Vec<f64> = mine("progress").filter_map(|line| line["progress"].as_f64()).collect();
    let all: Vec<f64> = (1..=steps).map(f64::from).collect();
    ensure!(saw == all, "{who}: {saw:?}");
    ensure!(mine("result").count() == 1, "{who}: no result, or more than one");
    Ok(())
}
