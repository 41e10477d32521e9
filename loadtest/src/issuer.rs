//! A mock of an issuer of tokens: it serves its public keys, and has one token that it signed before. Its
//! private keys do not exist any more, so it signs no other.

use serde::Deserialize;
use serde_json::value::RawValue;
use tenants::OauthSettings;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

/// Tokens that end in 2100, and the public keys. The first sight of the same tokens is timed.
const TOKENS: &str = include_str!("../../crates/identity/benches/tokens.json");

#[derive(Deserialize)]
struct Written {
    issuer: String,
    audience: String,
    tokens: Tokens,
    keys: Box<RawValue>,
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(rename = "RS256")]
    rs256: String,
}

/// The issuer, which serves its keys for as long as the runtime runs.
pub(crate) struct Issuer {
    name: String,
    keys_url: String,
    /// The URL of the node for whose tenant `demo` the token is.
    pub(crate) public_url: String,
    /// A token of 823 bytes, signed with RS256 as most are.
    pub(crate) token: String,
}

impl Issuer {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let Written { issuer, audience, tokens, keys } = serde_json::from_str(TOKENS)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let keys_url = format!("http://{}/keys", listener.local_addr()?);
        tokio::spawn(async move {
            // One connection at a time: a node fetches the keys once in five minutes.
            while let Ok((connection, _)) = listener.accept().await {
                let _ended_early = serve(BufReader::new(connection), keys.get()).await;
            }
        });
        let public_url = audience.trim_end_matches("/demo/mcp").to_owned();
        Ok(Self { name: issuer, keys_url, public_url, token: tokens.rs256 })
    }

    /// The settings of a tenant that takes its tokens.
    pub(crate) fn settings(&self) -> OauthSettings {
        OauthSettings {
            issuer: self.name.clone(),
            scopes: vec!["mcp".to_owned()],
            jwks_url: self.keys_url.clone(),
            ..OauthSettings::default()
        }
    }
}

async fn serve(
    mut connection: BufReader<tokio::net::TcpStream>,
    keys: &str,
) -> std::io::Result<()> {
    let mut line = String::new();
    // The end of the head, or of the connection.
    while connection.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let length = keys.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(keys.as_bytes()).await
}
