//! The shipped nginx configuration that passes TLS through, run by nginx in front of nodes that end TLS.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::mcp::Client;
use tests::nodes::port;
use tests::recorded::Recorded;
use tests::tls::{Authority, Tunnel, certificate, shown};
use tests::{Setup, tools};
use tokio::net::TcpStream;
use tokio::time::sleep;

const NEWEST: &str = "2025-11-25";

/// The maximum time of each step here.
const PATIENCE: Duration = Duration::from_secs(30);

/// nginx with `deploy/nginx/passthrough.conf`, as a file that an operator has adapted.
struct Nginx {
    process: Child,
    base: String,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // In the foreground and without workers of its own: the process is all of it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Nginx {
    /// Starts nginx in front of three nodes at `https://host:port`.
    async fn start(folder: &Path, nodes: [&str; 3]) -> Result<Self> {
        let shipped = fs::read_to_string(tools::root().join("deploy/nginx/passthrough.conf"))?;
        let listen = format!("127.0.0.1:{}", port()?);
        let mut adapted = shipped.replace("listen 443;", &format!("listen {listen};"));
        for (written, node) in ["10.0.0.4:443", "10.0.0.5:443", "10.0.0.6:443"].iter().zip(nodes) {
            ensure!(adapted.matches(written).count() == 1, "{written} is not in the file once");
            adapted = adapted.replace(written, node.strip_prefix("https://").context("no TLS")?);
        }
        // The ports of this test may end in 443.
        let is_left = adapted.contains("10.0.0.") || adapted.contains("listen 443;");
        ensure!(!is_left, "an address was not replaced:\n{adapted}");
        fs::write(folder.join("passthrough.conf"), adapted)?;
        let modules = Self::modules()?;
        let at = folder.display();
        let main = format!(
            "load_module {modules}/ngx_stream_module.so;\ndaemon off;\nmaster_process off;\n\
             pid {at}/pid;\nerror_log {at}/errors;\nevents {{}}\ninclude {at}/passthrough.conf;\n"
        );
        fs::write(folder.join("nginx.conf"), main)?;
        let process = Command::new("nginx")
            .env("PATH", format!("{}:/usr/sbin:/sbin", tools::path()))
            .args(["-e", "stderr", "-c"])
            .arg(folder.join("nginx.conf"))
            .stdin(Stdio::null())
            .spawn()
            .context("nginx does not start; tests/setup installs it")?;
        let mut nginx = Self { process, base: format!("https://{listen}") };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(&listen).await.is_err() {
            ensure!(nginx.process.try_wait()?.is_none(), "nginx ended; its output says why");
            ensure!(Instant::now() < until, "nginx does not listen");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(nginx)
    }

    /// The folder with the module `stream`.
    fn modules() -> Result<&'static str> {
        let folders = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules"];
        let has_it = |folder: &&str| Path::new(folder).join("ngx_stream_module.so").exists();
        let found = folders.into_iter().find(has_it);
        found.context("the module `stream` of nginx is missing; tests/setup installs it")
    }
}

#[tokio::test]
async fn behind_the_shipped_passthrough_clients_get_the_nodes_certificate_and_survive_a_node()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let authority = Authority::new()?;
    authority.issue(folder.path(), "default", &["mcp.example.com"])?;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let settings = format!(
        "[front.tls]\ncert_file = '{}'\nkey_file = '{}'\n[tenants.demo]\nauth = 'open'\n\
         [tenants.demo.backends.main]\nkind = 'native'\nname = 'everything'\n",
        file("default.cert"),
        file("default.key")
    );
    let mut cluster = Recorded::start([(); 3].map(|()| Setup::config(&settings))).await?;
    let bases = [cluster.node(0)?, cluster.node(1)?, cluster.node(2)?].map(|node| &*node.base);
    let nginx = Nginx::start(folder.path(), bases).await?;

    let seen = shown(&nginx.base, authority.client()?, "mcp.example.com").await?;
    ensure!(seen == certificate(folder.path(), "default")?, "not the certificate of the nodes");
    let tunnel = Tunnel::start(&[&nginx.base], authority.client()?, "mcp.example.com").await?;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(Client::open(tunnel.mcp("demo"), NEWEST).await?);
    }
    for client in &clients {
        // Each request is a connection of its own, and goes to the next node.
        for _ in 0..3 {
            client.is_well().await?;
        }
    }
    let mut used = 0;
    for node in 0..3 {
        let sessions = cluster.node(node)?.metric("roundhouse_sessions").await?;
        used += usize::from(sessions.is_some_and(|sessions| sessions > 0.0));
    }
    ensure!(used > 1, "nginx uses {used} node");

    cluster.kill(2)?;
    cluster.deaths_noticed().await?;
    for client in &clients {
        for _ in 0..3 {
            client.tool("test_simple_text", json!({})).await?;
        }
    }
    Ok(())
}
