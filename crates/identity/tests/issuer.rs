//! An issuer on loopback that answers as a test says, and notes what it is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// One request that the issuer got.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
}

#[derive(Clone, Debug)]
struct Answer {
    status: u16,
    headers: String,
    body: String,
    after: Duration,
}

#[derive(Debug, Default)]
struct State {
    answers: HashMap<String, Answer>,
    asked: Vec<Asked>,
}

/// An issuer, for as long as the runtime of the test.
#[derive(Clone, Debug)]
pub(crate) struct Issuer {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

impl Issuer {
    /// An issuer that publishes the key `ed`.
    pub(crate) async fn start() -> Self {
        let issuer = Self::silent().await;
        issuer.describes(&format!("{}/keys", issuer.url));
        issuer.answers("/keys", 200, &keys("ed", 7));
        issuer
    }

    /// An issuer that knows nothing: each answer is 404.
    pub(crate) async fn silent() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, Arc::clone(&shared)));
            }
        });
        Self { url, state }
    }

    /// Publishes metadata that names this URL of the keys.
    pub(crate) fn describes(&self, keys: &str) {
        let metadata = json!({ "issuer": self.url, "jwks_uri": keys });
        self.answers("/.well-known/oauth-authorization-server", 200, &metadata);
    }

    pub(crate) fn answers(&self, path: &str, status: u16, body: &Value) {
        self.answers_with(path, status, "", body.to_string(), Duration::ZERO);
    }

    /// Answers so from now on, after a time.
    pub(crate) fn answers_with(
        &self,
        path: &str,
        status: u16,
        headers: &str,
        body: String,
        after: Duration,
    ) {
        let answer = Answer { status, headers: headers.to_owned(), body, after };
        self.state().answers.insert(path.to_owned(), answer);
    }

    /// What was asked for at a path.
    pub(crate) fn asked(&self, path: &str) -> Vec<Asked> {
        self.state().asked.iter().filter(|asked| asked.path == path).cloned().collect()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(mut connection: TcpStream, state: Arc<Mutex<State>>) -> Option<()> {
    let (reader, mut writer) = connection.split();
    let mut lines = BufReader::new(reader);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).await.ok()?;
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let header = |name: &str| {
        let mut all = head.iter().filter_map(|line| line.split_once(": "));
        all.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    lines.read_exact(&mut body).await.ok()?;
    let path = head.first()?.split(' ').nth(1)?.to_owned();
    let body = String::from_utf8(body).ok()?;
    let answer = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked.push(Asked {
            path: path.clone(),
            authorization: header("authorization"),
            body,
        });
        state.answers.get(&path).cloned()
    };
    let none = || Answer {
        status: 404,
        headers: String::new(),
        body: String::new(),
        after: Duration::ZERO,
    };
    let Answer { status, headers, body, after } = answer.unwrap_or_else(none);
    tokio::time::sleep(after).await;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n"
    );
    writer.write_all((head + &body).as_bytes()).await.ok()
}

/// The time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The key that is made from this seed.
fn key(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

/// A set with the public key of this seed.
pub(crate) fn keys(id: &str, seed: u8) -> Value {
    let x = encoded(key(seed).public_key());
    json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": id }] })
}

/// A token for this audience, signed with the key of this seed. It ends in an hour.
pub(crate) fn token(issuer: &str, audience: &str, id: &str, seed: u8) -> String {
    let header = json!({ "alg": "EdDSA", "kid": id });
    let claims = json!({ "iss": issuer, "aud": audience, "sub": "ada", "exp": now() + 3_600 });
    let signed = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
    format!("{signed}.{}", encoded(key(seed).sign(signed.as_bytes())))
}
