//! The nodes of a measurement, and the servers of their tenants.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::backends::{Kind, Servers};
use crate::local::{self, LocalCluster};
use crate::mcp::Endpoint;
use crate::target::Started;
use crate::{cores, target};

/// How long a node may take to start.
const START: Duration = Duration::from_secs(60);

/// Running nodes and servers. They end when this value is dropped.
pub(crate) struct Machine {
    base: String,
    folder: PathBuf,
    /// Where the hostile server listens.
    pub(crate) hostile: TcpListener,
    _nodes: Nodes,
    _servers: [Started; 2],
}

#[expect(dead_code, reason = "they are kept until they are dropped")]
enum Nodes {
    One(Node),
    Cluster(Box<LocalCluster>),
}

impl Machine {
    pub(crate) fn start(nodes: usize) -> anyhow::Result<Self> {
        let this = std::env::current_exe()?;
        let servers = [cores::on_server_core(&this), cores::behind_others_on_load_core(&this)].map(
            |mut server| {
                server.args(["serve", "rmcp-own"]);
                target::start("rmcp-own", server)
            },
        );
        let [here, there] = servers;
        let servers = [here?, there?];
        let honest = servers.each_ref().map(|server| server.target.endpoints[0].to_string());
        let hostile = TcpListener::bind("127.0.0.1:0")?;
        let settings = Servers {
            core: cores::load_core(),
            honest: honest.each_ref().map(String::as_str),
            hostile: &format!("http://{}/mcp", hostile.local_addr()?),
        };
        let folder = std::env::temp_dir().join(format!("loadtest-tenants-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("roundhouse.toml");
        std::fs::write(&file, settings.settings()?)?;
        let (base, nodes) = match nodes {
            1 => {
                let node = Node::start(&file)?;
                (format!("http://{}", node.address), Nodes::One(node))
            }
            _ => {
                let cluster = LocalCluster::start_apart(nodes, &file, &folder)?;
                (cluster.base()?, Nodes::Cluster(Box::new(cluster)))
            }
        };
        Ok(Self { base, folder, hostile, _nodes: nodes, _servers: servers })
    }

    /// The endpoint of a tenant: `quiet`, `noisy` or `hostile`.
    pub(crate) fn endpoint(&self, whose: &str, kind: Kind) -> anyhow::Result<Endpoint> {
        Endpoint::parse(&format!("{}/{whose}-{}/mcp", self.base, kind.name()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// A node with its records in memory.
struct Node {
    address: SocketAddr,
    process: Child,
}

impl Node {
    fn start(settings: &Path) -> anyhow::Result<Self> {
        // The script ends what it starts when its standard input closes.
        let mut command = cores::behind_others(local::LEASH);
        command.arg("run").arg(local::program()?).args(["serve", "--config"]).arg(settings);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().context("starting a node")?;
        let printed = BufReader::new(process.stdout.take().context("no output")?);
        let mut node = Self { address: ([127, 0, 0, 1], 0).into(), process };
        // The thread ends with the node.
        let (sender, started) = mpsc::sync_channel(1);
        thread::spawn(move || {
            for address in printed.lines().map_while(Result::ok).filter_map(address_in) {
                let _is_first = sender.try_send(address);
            }
        });
        node.address = started.recv_timeout(START).context("the node did not start")?;
        Ok(node)
    }
}

/// The address in a line with which a node says where a tenant is served.
fn address_in(line: String) -> Option<SocketAddr> {
    let (_, url) = line.strip_prefix("tenant ")?.split_once("http://")?;
    url.split_once('/')?.0.parse().ok()
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ended = self.process.wait();
    }
}
