//! Our own servers, and the bare ones that show what HTTP alone costs.

use std::process::Command;

use anyhow::Context as _;

use crate::mcp::Endpoint;
use crate::process::Processes;
use crate::scenarios::{Load, Scenario};
use crate::servers::Which;
use crate::target::{self, Started, Target};

/// Each with what it is.
const ALL: [(&str, Which, &str); 6] = [
    ("bare-json", Which::BareJson, "bare actix-web: parses a body and echoes it as JSON"),
    ("bare-sse", Which::BareSse, "bare actix-web: ten events and an answer as SSE"),
    ("handler", Which::Handler, "a node with an echo on the Handler trait"),
    ("rmcp-mounted", Which::RmcpMounted, "a node with the same rmcp service as rmcp-own, mounted"),
    ("rmcp-own", Which::RmcpOwn, "rmcp's own Streamable HTTP server"),
    ("cluster", Which::Cluster, "three nodes on a Redis, every request to another node"),
];

pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _, _)| *name).collect()
}

pub(crate) fn told(name: &str) -> &'static str {
    ALL.iter().find(|(other, _, _)| *other == name).map_or("", |(_, _, told)| told)
}

/// Starts one on a core.
pub(crate) fn start(name: &str, core: usize) -> anyhow::Result<Started> {
    let (_, which, _) = ALL.iter().find(|(other, _, _)| *other == name).context("no such server")?;
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(std::env::current_exe()?);
    command.args(["serve", &format!("{which:?}").to_lowercase()]);
    let mut started = target::start(name, command)?;
    let target = &mut started.target;
    target.is_bare = matches!(which, Which::BareJson | Which::BareSse);
    if matches!(which, Which::Handler) {
        // The node prints the quiet tenant's endpoint, and then the noisy one's.
        let neighbour = target.endpoints.split_off(1);
        target.neighbour = Some(Box::new(Target { endpoints: neighbour, ..target.clone() }));
    }
    Ok(started)
}

/// A server that runs already: one URL, or those of several nodes with commas between.
pub(crate) fn running(urls: &str, pids: &[u32]) -> anyhow::Result<Target> {
    let endpoints = urls.split(',').map(Endpoint::parse).collect::<anyhow::Result<_>>()?;
    Ok(Target {
        name: urls.to_owned(),
        endpoints,
        processes: Processes(pids.to_vec()),
        stores: Processes::default(),
        is_bare: false,
        echo: target::echo(),
        counts: Some(target::counts()),
        neighbour: None,
        cluster: None,
    })
}

/// A local cluster, entered through its balancer.
pub(crate) fn cluster(file: &str) -> anyhow::Result<Target> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let lb = json["lb"].as_str().context("cluster.json names no balancer")?;
    let pid = |value: &serde_json::Value| value["pid"].as_u64().and_then(|pid| pid.try_into().ok());
    let nodes = json["nodes"].as_array().context("cluster.json names no nodes")?;
    let nodes: Vec<u32> = nodes.iter().filter_map(pid).collect();
    let mut target = running(&format!("{lb}/demo/mcp"), &nodes)?;
    target.name = "local cluster".to_owned();
    target.stores = Processes(pid(&json["redis"]).into_iter().collect());
    target.echo.name = "rh_echo".to_owned();
    target.counts = Some(target::Counts { name: "rh_count".into(), ..target::counts() });
    target.cluster = Some(file.into());
    Ok(target)
}

/// Which scenarios a server is asked for, and how hard.
pub(crate) fn plan(name: &str, smoke: bool) -> Vec<(Scenario, Load)> {
    let secs = if smoke { 0.3 } else { 5.0 };
    let load = Load {
        secs,
        connections: 16,
        sessions: if smoke { 20 } else { 1_000 },
        rate: None,
        interval_ms: 0,
        events: 10,
        kills: 1,
    };
    let few = Load { sessions: load.sessions.min(50), ..load.clone() };
    let all = [Scenario::Calls, Scenario::Churn, Scenario::Progress, Scenario::Hold];
    match name {
        "bare-json" => vec![(Scenario::Calls, load)],
        "bare-sse" => vec![(Scenario::Progress, load)],
        "handler" => {
            let more = [Scenario::Resume, Scenario::Tenants];
            all.into_iter().chain(more).map(|scenario| (scenario, load.clone())).collect()
        }
        "cluster" => vec![(Scenario::Calls, load.clone()), (Scenario::Progress, load.clone()), (Scenario::Resume, load)],
        "rmcp-own" | "rmcp-mounted" => all.map(|scenario| (scenario, load.clone())).into(),
        // Some start a process for each session.
        _ => all.map(|scenario| (scenario, few.clone())).into(),
    }
}
