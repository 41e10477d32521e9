//! A node that reads its Redis URL, its certificates and its password from the settings file.

use std::path::Path;

use anyhow::{Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use tests::mcp::Client;
use tests::redis::Redis;
use tests::{Node, Setup};

/// A password with characters that must be escaped in a URL, but not in a file.
const PASSWORD: &str = "p@ss/w:rd%";

/// Writes the authority (`ca`), and the certificates of server and node (`*.cert`, `*.key`).
fn vouch(dir: &Path) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    std::fs::write(dir.join("ca"), issuer.pem())?;
    for who in ["server", "node"] {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()])?;
        // With the name of the authority, the certificate would be taken for a self-signed one.
        params.distinguished_name.push(DnType::CommonName, who);
        std::fs::write(dir.join(format!("{who}.cert")), params.signed_by(&key, &issuer)?.pem())?;
        std::fs::write(dir.join(format!("{who}.key")), key.serialize_pem())?;
    }
    let password = dir.join("password");
    std::fs::write(&password, format!("{PASSWORD}\n"))?;
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    Ok(std::fs::set_permissions(password, own)?)
}

#[tokio::test]
async fn a_node_proves_itself_to_redis_with_what_its_settings_file_names() -> Result<()> {
    let dir = tempfile::tempdir()?;
    vouch(dir.path())?;
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca"), file("server.cert"), file("server.key"));
    let redis = Redis::start_with_tls(&[
        "--tls-ca-cert-file",
        &ca,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--requirepass",
        PASSWORD,
    ])?;
    let setup = Setup::config(format!(
        "[store]
         url = '{}'
         password_file = '{}'
         prefix = 'acme'
         timeout_ms = 2000
         [store.tls]
         ca_file = '{ca}'
         cert_file = '{}'
         key_file = '{}'
         [tenants.demo]
         auth = 'open'
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'",
        redis.url().replace("redis://", "rediss://"),
        file("password"),
        file("node.cert"),
        file("node.key"),
    ));
    let node = Node::start(&setup)?;
    let client = Client::open(node.demo(), "2025-11-25").await?;
    let said = client.tool("rh_echo", json!({ "number": 1 })).await?;
    ensure!(said["structuredContent"]["number"] == 1, "{said}");
    let connections = node.metric("roundhouse_redis_connections").await?;
    // One connection for sessions, and one for the lease only.
    ensure!(connections == Some(2.0), "{connections:?} connections to Redis");
    ensure!(!node.output().contains(PASSWORD), "the password is in the log");
    Ok(())
}
