//! A mock of an issuer of tokens: it serves its public keys, and signs one token.

use serde_json::json;
use tenants::OauthSettings;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::signer::{ISSUER, PUBLIC_URL, Signer};

/// The issuer, which serves its keys for as long as the runtime runs.
pub(crate) struct Issuer {
    keys_url: String,
    /// A token of 823 bytes, signed with RS256 as most are, for the tenant `demo`.
    pub(crate) token: String,
}

impl Issuer {
    /// The URL of the node at which the token is valid.
    pub(crate) const PUBLIC_URL: &str = PUBLIC_URL;

    pub(crate) async fn start() -> anyhow::Result<Self> {
        let signer = Signer::rs256();
        let keys = json!({ "keys": [signer.jwk()] }).to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let keys_url = format!("http://{}/keys", listener.local_addr()?);
        tokio::spawn(async move {
            // One connection at a time: a node fetches the keys once in five minutes.
            while let Ok((connection, _)) = listener.accept().await {
                let _ended_early = serve(BufReader::new(connection), &keys).await;
            }
        });
        Ok(Self { keys_url, token: signer.token() })
    }

    /// The settings of a tenant that takes its tokens.
    pub(crate) fn settings(&self) -> OauthSettings {
        OauthSettings {
            issuer: ISSUER.to_owned(),
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
