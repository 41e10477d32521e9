//! A mock of an issuer of tokens: it serves its public keys, and signs one token when it starts.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tenants::OauthSettings;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

/// The keys of an issuer that does not exist; the first one is of RS256. The first sight of tokens that they
/// sign is timed by a benchmark.
const KEYS: &str = include_str!("../../crates/identity/benches/keys.json");

const NAME: &str = "https://issuer.example";

const PUBLIC_URL: &str = "https://mcp.example";

/// How long the token lives, in seconds: longer than a measurement, and not longer than a token may.
const LASTS: u64 = 24 * 3_600;

#[derive(Deserialize)]
struct Key {
    private: String,
    public: Box<RawValue>,
}

/// The issuer, which serves its keys for as long as the runtime runs.
pub(crate) struct Issuer {
    keys_url: String,
    /// The URL of the node for whose tenant `demo` the token is.
    pub(crate) public_url: String,
    /// A token of about 800 bytes, signed with RS256 as most are.
    pub(crate) token: String,
}

impl Issuer {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let all: Vec<Key> = serde_json::from_str(KEYS)?;
        let rs256 = all.first().context("no key")?;
        let token = sign(rs256)?;
        let keys = json!({ "keys": [&rs256.public] }).to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let keys_url = format!("http://{}/keys", listener.local_addr()?);
        tokio::spawn(async move {
            // One connection at a time: a node fetches the keys once in five minutes.
            while let Ok((connection, _)) = listener.accept().await {
                let _ended_early = serve(BufReader::new(connection), &keys).await;
            }
        });
        Ok(Self { keys_url, public_url: PUBLIC_URL.to_owned(), token })
    }

    /// The settings of a tenant that takes its tokens.
    pub(crate) fn settings(&self) -> OauthSettings {
        OauthSettings {
            issuer: NAME.to_owned(),
            scopes: vec!["mcp".to_owned()],
            jwks_url: self.keys_url.clone(),
            ..OauthSettings::default()
        }
    }
}

/// A token of this key for the endpoint of `demo`.
fn sign(key: &Key) -> anyhow::Result<String> {
    let public: Value = serde_json::from_str(key.public.get())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let header = json!({ "alg": "RS256", "typ": "at+jwt", "kid": public["kid"] });
    let claims = json!({
        "sub": "f3b1c0de-7a55-4a43-9a0e-0d6b2a1f4c11",
        "client_id": "https://client.example/client.json",
        "scope": "mcp tools:read tools:write", "jti": "0b3e6f3a-5a0c-4d9c-8b59-0d6b2a1f4c11",
        "groups": ["staff", "editors"], "iss": NAME, "aud": format!("{PUBLIC_URL}/demo/mcp"),
        "iat": now, "exp": now + LASTS
    });
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let signed = format!("{header}.{claims}");
    let private = URL_SAFE_NO_PAD.decode(&key.private)?;
    let private = RsaKeyPair::from_pkcs8(&private).map_err(|error| anyhow!("no key: {error}"))?;
    let mut signature = vec![0; private.public().modulus_len()];
    private
        .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
        .map_err(|error| anyhow!("no signature: {error}"))?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
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
