//! Our own servers, and the bare HTTP servers that show the cost of HTTP alone.

use std::path::Path;

use anyhow::Context as _;

use crate::cores;
use crate::mcp::Endpoint;
use crate::process::Processes;
use crate::servers::Which;
use crate::target::{self, Counts, Started, Target};

/// The name of each server, and its description.
const ALL: [(&str, Which, &str); 16] = [
    ("bare-json", Which::BareJson, "bare actix-web: parses a body and echoes it as JSON"),
    (
        "bare-sse",
        Which::BareSse,
        "bare actix-web: ten events and an answer as SSE; streams with periodic comments",
    ),
    ("handler", Which::Handler, "a node with an echo on the Handler trait"),
    ("handler-keys", Which::HandlerKeys, "the same, whose clients send a key with each request"),
    (
        "handler-oauth",
        Which::HandlerOauth,
        "the same, whose clients send a token of a mock issuer with each request",
    ),
    (
        "handler-limits",
        Which::HandlerLimits,
        "the same, whose tenant has a rate and a maximum of requests in flight in the cluster",
    ),
    ("handler-audit", Which::HandlerAudit, "the same, with an audit log in a file"),
    (
        "handler-traces",
        Which::HandlerTraces,
        "the same, which traces one message in a hundred and sends it to a mock of a collector",
    ),
    ("handler-redis", Which::HandlerRedis, "the same, with its records and logs in a Redis"),
    ("handler-sleepy", Which::HandlerSleepy, "the same, whose sessions sleep after a second"),
    ("rmcp-mounted", Which::RmcpMounted, "a node with the same rmcp service as rmcp-own, mounted"),
    ("rmcp-own", Which::RmcpOwn, "rmcp's own Streamable HTTP server"),
    (
        "stdio",
        Which::Stdio,
        "a node with a program over its standard streams; only the node's CPU counts",
    ),
    (
        "http",
        Which::Http,
        "a node in front of rmcp-own, which it reaches over HTTP; only the node's CPU counts",
    ),
    ("cluster", Which::Cluster, "three nodes on a Redis, every request to the next of them"),
    (
        "cluster-encrypted",
        Which::ClusterEncrypted,
        "the same, with encrypted links between the nodes",
    ),
];

pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _, _)| *name).collect()
}

pub(crate) fn told(name: &str) -> &'static str {
    ALL.iter().find(|(other, _, _)| *other == name).map_or("", |(_, _, told)| told)
}

/// Starts a server by its name.
pub(crate) fn start(name: &str) -> anyhow::Result<Started> {
    let (_, which, _) =
        ALL.iter().find(|(other, _, _)| *other == name).context("no such server")?;
    let mut command = cores::on_server_core(std::env::current_exe()?);
    command.args(["serve", name]);
    let mut started = target::start(name, command)?;
    let target = &mut started.target;
    target.is_bare = matches!(which, Which::BareJson | Which::BareSse);
    if matches!(which, Which::Stdio | Which::Http) {
        target.processes.without_children();
    }
    if *which == Which::Handler {
        // The node prints the endpoint of the quiet tenant, then that of the noisy one.
        let neighbour = target.endpoints.split_off(1);
        target.neighbour = Some(Box::new(Target { endpoints: neighbour, ..target.clone() }));
    }
    Ok(started)
}

/// A server that runs already: the URL of each node, `neighbour=` and the URL of another tenant there,
/// and `pid=` for each process, separated by commas.
pub(crate) fn running(words: &str) -> anyhow::Result<Target> {
    let (mut pids, mut neighbours) = (Vec::new(), Vec::new());
    let mut target = target::nowhere(words);
    for word in words.split(',') {
        match word.split_once('=') {
            Some(("pid", pid)) => pids.push(pid.parse().context("`pid=` is followed by a number")?),
            Some(("neighbour", url)) => neighbours.push(Endpoint::parse(url)?),
            _ => target.endpoints.push(Endpoint::parse(word)?),
        }
    }
    target.processes = Processes::of(pids);
    if !neighbours.is_empty() {
        target.neighbour = Some(Box::new(Target { endpoints: neighbours, ..target.clone() }));
    }
    Ok(target)
}

/// A local cluster. Requests go to its balancer.
pub(crate) fn cluster(file: &Path) -> anyhow::Result<Target> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let lb = json["lb"].as_str().context("cluster.json names no balancer")?;
    let pid = |value: &serde_json::Value| value["pid"].as_u64().and_then(|pid| pid.try_into().ok());
    let nodes = json["nodes"].as_array().context("cluster.json names no nodes")?;
    let nodes: Vec<u32> = nodes.iter().filter_map(pid).collect();
    let mut target = running(&format!("{lb}/demo/mcp"))?;
    target.processes = Processes::of(nodes);
    target.name = "local-cluster".to_owned();
    target.stores = Processes::of(pid(&json["redis"]));
    target.echo.name = "rh_echo".to_owned();
    target.counts = target.counts.map(|counts| Counts { name: "rh_count".into(), ..counts });
    target.cluster = Some(file.into());
    Ok(target)
}
