//! TLS for clients: an authority that issues certificates, and connections that trust it alone.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate authority.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new authority.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Its certificate, PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes a certificate for these hosts as `NAME.cert`, and its key as `NAME.key`. Each file is
    /// replaced in one step.
    pub fn issue(&self, folder: &Path, name: &str, hosts: &[&str]) -> Result<()> {
        self.issue_until(folder, name, hosts, 4_000)
    }

    /// The same for a certificate that ends on the first day of a year.
    pub fn issue_until(&self, folder: &Path, name: &str, hosts: &[&str], year: i32) -> Result<()> {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts)?;
        // With the name of the authority, the certificate would be taken for a self-signed one.
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate()?;
        write(&folder.join(format!("{name}.cert")), &params.signed_by(&key, &self.0)?.pem())?;
        write(&folder.join(format!("{name}.key")), &key.serialize_pem())
    }

    /// The settings of clients that trust this authority alone.
    pub fn client(&self) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth())
    }
}

/// Replaces a file that only its owner can read in one step.
pub fn write(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    Ok(std::fs::rename(new, file)?)
}

/// The certificate in a file that [`Authority::issue`] has written.
pub fn certificate(folder: &Path, name: &str) -> Result<CertificateDer<'static>> {
    Ok(CertificateDer::from_pem_file(folder.join(format!("{name}.cert")))?)
}

/// Connects to a node at `https://host:port`, and asks for this name.
pub async fn connect(base: &str, config: ClientConfig, name: &str) -> Result<TlsStream<TcpStream>> {
    let address = base.strip_prefix("https://").context("not https")?;
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned())?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// The certificate that a node shows to a client that asks for this name.
pub async fn shown(
    base: &str,
    config: ClientConfig,
    name: &str,
) -> Result<CertificateDer<'static>> {
    let stream = connect(base, config, name).await?;
    let chain = stream.get_ref().1.peer_certificates().context("no certificate")?;
    Ok(chain.first().context("an empty chain")?.clone().into_owned())
}

/// A listener without TLS, each of whose connections goes to a node over TLS. Dropping it closes all of
/// them.
#[derive(Debug)]
pub struct Tunnel {
    /// The URL of the listener.
    pub base: String,
    task: tokio::task::JoinHandle<()>,
}

impl Tunnel {
    /// A tunnel to the nodes at `https://host:port`, one after another. Each is asked for this name.
    pub async fn start(nodes: &[&str], config: ClientConfig, name: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("http://{}", listener.local_addr()?);
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let name = name.to_owned();
        let task = tokio::spawn(async move {
            let (mut connections, next) = (JoinSet::new(), AtomicUsize::new(0));
            while let Ok((mut client, _)) = listener.accept().await {
                let node = nodes[next.fetch_add(1, Ordering::Relaxed) % nodes.len()].clone();
                let (config, name) = (config.clone(), name.clone());
                connections.spawn(async move {
                    if let Ok(mut node) = connect(&node, config, &name).await {
                        let _ = copy_bidirectional(&mut client, &mut node).await;
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { base, task })
    }

    /// The Streamable HTTP endpoint of a tenant.
    pub fn mcp(&self, tenant: &str) -> String {
        format!("{}/{tenant}/mcp", self.base)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}
