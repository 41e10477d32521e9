//! Authorization servers: one that signs what a test asks for, and one that real clients sign in at.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::registry::certify;
use crate::tools;

/// How long an issuer may take to start.
const START: Duration = Duration::from_secs(30);

/// The `exp` of a token that ends in an hour.
pub fn in_an_hour() -> u64 {
    let hour = std::time::SystemTime::now() + Duration::from_secs(3_600);
    hour.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A running authorization server. Dropping it kills the process.
#[derive(Debug)]
pub struct Issuer {
    process: Child,
    /// The issuer, as its tokens name it.
    pub url: String,
    control: String,
    /// The id of the only client, if that is the URL of a document about it.
    pub client: String,
    /// The certificates of the site with that document.
    _certificates: Option<tempfile::TempDir>,
}

impl Issuer {
    /// `oauth2-mock-server`, which signs what [`Issuer::token`] asks for with the key `rs`.
    pub async fn mock() -> Result<Self> {
        Self::start("mock.mjs", &[]).await
    }

    /// `oidc-provider`, whose tokens have these scopes and last for so many seconds.
    pub async fn provider(scopes: &str, lasts_secs: u64) -> Result<Self> {
        Self::start("provider.mjs", &[scopes, &lasts_secs.to_string()]).await
    }

    /// The same. It registers no client, and knows the one of [`Issuer::client`] by the document that it
    /// fetches. The client may have its users sent to one of these callbacks.
    pub async fn provider_of_a_document(scopes: &str, callbacks: &[&str]) -> Result<Self> {
        let certificates = tempfile::tempdir()?;
        certify(certificates.path())?;
        let folder = certificates.path().display().to_string();
        let arguments = [&[scopes, "600", &folder], callbacks].concat();
        let trusted = certificates.path().join("ca");
        let started = Self::start_trusting("provider.mjs", &arguments, Some(&trusted)).await?;
        Ok(Self { _certificates: Some(certificates), ..started })
    }

    async fn start(script: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_trusting(script, arguments, None).await
    }

    async fn start_trusting(
        script: &str,
        arguments: &[&str],
        authority: Option<&Path>,
    ) -> Result<Self> {
        let script = tools::root().join("tests/servers/issuers").join(script);
        let mut command = Command::new(tools::node());
        command.arg(script).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        command.envs(authority.map(|authority| ("NODE_EXTRA_CA_CERTS", authority)));
        let mut process = command.stderr(Stdio::inherit()).kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("no stdout")?).lines();
        let first = async {
            loop {
                let line = lines.next_line().await?.context("the issuer has ended")?;
                if let Ok(line) = serde_json::from_str::<Value>(&line) {
                    return anyhow::Ok(line);
                }
            }
        };
        let told = tokio::time::timeout(START, first).await.context("no issuer in time")??;
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        let (url, control, client) = (text("issuer"), text("control"), text("client"));
        Ok(Self { process, url, control, client, _certificates: None })
    }

    /// Ends the process.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Signs a token. `wanted` may have `kid`, `header` and `claims`; `null` removes a header or claim.
    pub async fn token(&self, wanted: Value) -> Result<String> {
        let signed = self.ask("token", wanted).await?;
        Ok(signed["token"].as_str().context("no token")?.to_owned())
    }

    /// Makes a token as an attacker does. `wanted` has a `header`, and `by`: what it is signed with.
    pub async fn forge(&self, wanted: Value) -> Result<String> {
        let forged = self.ask("forge", wanted).await?;
        Ok(forged["token"].as_str().context("no token")?.to_owned())
    }

    /// Has each introspection take so long.
    pub async fn be_slow(&self, ms: u64) -> Result<()> {
        self.ask("slow", json!({ "ms": ms })).await.map(drop)
    }

    /// Makes a key, and publishes it.
    pub async fn add_key(&self, alg: &str, kid: &str) -> Result<()> {
        let crv = (alg == "EdDSA").then_some("Ed25519");
        self.ask("keys", json!({ "alg": alg, "kid": kid, "crv": crv })).await.map(drop)
    }

    /// Where the issuer is asked about opaque tokens, by the client `node` with the secret `s+ecret`.
    pub fn introspection_url(&self) -> String {
        format!("{}/introspect", self.control)
    }

    /// Sets what introspection says of a token.
    pub async fn introspects(&self, token: &str, says: Value) -> Result<()> {
        self.ask("opaque", json!({ "token": token, "says": says })).await.map(drop)
    }

    /// How many tokens the issuer was asked about.
    pub async fn introspections(&self) -> Result<u64> {
        self.ask("count", json!({})).await?["introspections"].as_u64().context("no count")
    }

    /// The keys, as they are published.
    pub async fn published(&self) -> Result<Value> {
        self.ask("published", json!({})).await
    }

    /// How many tokens the provider issued for client credentials, and by exchange, and how many it refused.
    pub async fn seen(&self) -> Result<Value> {
        self.ask("seen", json!({})).await
    }

    /// A token of the provider for this user and this audience, as if the user had signed in.
    pub async fn mint(&self, user: &str, audience: &str) -> Result<String> {
        let minted = self.ask("mint", json!({ "sub": user, "aud": audience })).await?;
        Ok(minted["token"].as_str().context("no token")?.to_owned())
    }

    /// How the provider exchanges tokens from now on: how many `secs` new ones last, and the `refusal`.
    pub async fn exchange(&self, how: Value) -> Result<()> {
        self.ask("exchange", how).await.map(drop)
    }

    /// Changes the secret of the provider's client `node`, which is `s+ecret` before.
    pub async fn change_secret(&self, secret: &str) -> Result<()> {
        self.ask("secret", json!({ "secret": secret })).await.map(drop)
    }

    /// Changes what the issuer does, see its script.
    pub async fn control(&self, what: &str, how: Value) -> Result<()> {
        self.ask(what, how).await.map(drop)
    }

    /// Kills the process.
    pub async fn stop(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    async fn ask(&self, what: &str, body: Value) -> Result<Value> {
        let url = format!("{}/{what}", self.control);
        let response = reqwest::Client::new().post(url).json(&body).send().await?;
        ensure!(response.status().is_success(), "{what}: {}", response.status());
        Ok(response.json().await?)
    }
}
