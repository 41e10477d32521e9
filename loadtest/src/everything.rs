//! The command `all`: every scenario against every server.

use std::io::Write as _;
use std::path::Path;

use tokio::runtime::Runtime;

use crate::compare::{self, Compared, Turns};
use crate::report::{LeftOut, Report};
use crate::scenarios::{Load, Scenario};
use crate::{Opened, open};

/// One scenario, and its servers.
struct Step {
    scenario: Scenario,
    load: Load,
    /// The number of turns of each server. With 0, each server runs alone on the machine.
    rounds: usize,
    servers: Vec<String>,
    /// The comparisons: a server and its base.
    pairs: Vec<(String, String)>,
}

/// Runs everything. A server that does not start, or cannot run a scenario, is left out of the
/// scenario, and the report lists it. The report is written again after each step, so that an
/// interrupted run keeps its results.
pub(crate) fn run(
    runtime: &Runtime,
    peers: &[String],
    smoke: bool,
    folder: &Path,
) -> anyhow::Result<Report> {
    let mut report = Report::new();
    for step in plan(peers, smoke) {
        let together = if step.rounds > 0 { step.servers.len() } else { 1 };
        for servers in step.servers.chunks(together) {
            step.run(runtime, servers, &mut report)?;
        }
        report.write(folder)?;
    }
    Ok(report)
}

impl Step {
    fn run(&self, runtime: &Runtime, names: &[String], report: &mut Report) -> anyhow::Result<()> {
        let mut opened = Vec::new();
        for name in names {
            match open(name) {
                Ok(server) => opened.push(server),
                Err(error) => self.leave_out(name, &error, report)?,
            }
        }
        let targets: Vec<_> = opened.iter().map(Opened::target).collect();
        let runs = if self.rounds > 0 {
            let turns = Turns { scenario: self.scenario, load: &self.load, rounds: self.rounds };
            runtime.block_on(turns.take(&targets))
        } else {
            let run = |target| runtime.block_on(self.scenario.run(target, &self.load));
            targets.iter().map(|target| run(target).map(|figures| vec![figures])).collect()
        };
        let mut kept = Vec::new();
        for (target, runs) in std::iter::zip(&targets, runs) {
            match runs {
                Ok(runs) => kept.push(runs),
                Err(error) => self.leave_out(&target.name, &error, report)?,
            }
        }
        let of = |name| kept.iter().find(|runs| compare::name_of(runs) == Some(name));
        for (server, base) in &self.pairs {
            let compared = of(server).zip(of(base)).and_then(|(a, b)| Compared::of(a, b));
            report.compared.extend(compared);
        }
        report.runs.extend(kept.into_iter().filter_map(compare::median));
        Ok(())
    }

    fn leave_out(
        &self,
        server: &str,
        error: &anyhow::Error,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let scenario = self.scenario.name();
        writeln!(std::io::stderr(), "{server} is left out of {scenario}: {error:#}")?;
        report.left_out.push(LeftOut {
            scenario: scenario.to_owned(),
            server: server.to_owned(),
            why: format!("{error:#}"),
        });
        Ok(())
    }
}

fn plan(peers: &[String], smoke: bool) -> Vec<Step> {
    let load = Load {
        secs: if smoke { 0.2 } else { 3.0 },
        connections: 16,
        // Some peers start a process for each session.
        sessions: if smoke { 20 } else { 50 },
        idle: false,
        rate: None,
        forwarded: false,
        interval_ms: 0,
        events: 10,
        kills: if smoke { 1 } else { 3 },
    };
    // Long enough for the periodic work on idle connections, such as keep-alive comments.
    let many = |sessions| match smoke {
        true => load.clone(),
        false => Load { sessions, secs: 30.0, ..load.clone() },
    };
    let of = |ours: &[&str], peers: &[String]| -> Vec<String> {
        ours.iter().map(|name| (*name).to_owned()).chain(peers.iter().cloned()).collect()
    };
    let to = |base: &str, servers: Vec<String>| -> Vec<(String, String)> {
        servers.into_iter().map(|server| (server, base.to_owned())).collect()
    };
    let nodes = ["handler", "rmcp-mounted", "handler-redis", "cluster", "rmcp-own"];
    let rmcp_and_ours = ["handler", "rmcp-mounted", "rmcp-own"];
    let and = |bare| of(&[&nodes[..], &[bare]].concat(), peers);
    let others = to("handler", of(&nodes[1..], peers));
    let calls = [to("bare-json", of(&nodes, peers)), others.clone()].concat();
    let rmcp = to("rmcp-mounted", of(&["rmcp-own"], &[]));
    let at_a_rate = Load { rate: Some(200.0), secs: load.secs * 2.0, ..load.clone() };
    let idle = Load { idle: true, ..many(19_000) };
    let apart = Load { interval_ms: 50, connections: 64, ..load.clone() };
    let turns = |rounds, scenario, load: &Load, servers, pairs| Step {
        scenario,
        load: load.clone(),
        rounds: if smoke { 1 } else { rounds },
        servers,
        pairs,
    };
    let alone = |scenario, load: &Load, servers| Step {
        scenario,
        load: load.clone(),
        rounds: 0,
        servers,
        pairs: Vec::new(),
    };
    vec![
        turns(5, Scenario::Calls, &load, and("bare-json"), [calls, rmcp].concat()),
        turns(3, Scenario::Calls, &load, of(&["stdio"], &[]), Vec::new()),
        turns(1, Scenario::Calls, &at_a_rate, of(&nodes, peers), Vec::new()),
        turns(5, Scenario::Churn, &load, of(&nodes, peers), others.clone()),
        turns(5, Scenario::Progress, &load, and("bare-sse"), others),
        turns(1, Scenario::Progress, &apart, of(&nodes, peers), Vec::new()),
        alone(Scenario::Hold, &many(19_000), of(&["bare-sse"], &rmcp_and_ours.map(str::to_owned))),
        alone(Scenario::Hold, &many(50_000), of(&["cluster"], &[])),
        alone(Scenario::Hold, &load, of(&[], peers)),
        alone(Scenario::Hold, &idle, of(&rmcp_and_ours, &["handler-sleepy".to_owned()])),
        alone(Scenario::Resume, &many(10_000), of(&["handler", "cluster"], &[])),
        alone(Scenario::Tenants, &load, of(&["handler"], &[])),
        alone(Scenario::Start, &load, of(&["handler"], &[])),
        alone(Scenario::Chaos, &load, of(&["local-cluster"], &[])),
    ]
}
