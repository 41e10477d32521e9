//! Users link accounts at servers that are reached over HTTP: a browser signs in at a real authorization server and
//! agrees at another one, and a real server keeps what it gets.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use serde_json::{Value, json};
use tests::audit_log::Log;
use tests::headers_server::Upstream;
use tests::issuers::Issuer;
use tests::mcp::{Client, final_response};
use tests::recorded::reaches;
use tests::redis::Redis;
use tests::sse::PATIENCE;
use tests::{Node, Setup, check, tools};
use tokio::time::sleep;

const NEWEST: &str = "2025-11-25";

/// Where the browser reaches the nodes: behind a proxy, whose part the test plays.
const PUBLIC: &str = "https://mcp.example.com";

/// The issuer of the tenant, the authorization server of the upstream server, and that server.
struct Bench {
    issuer: Issuer,
    accounts: Issuer,
    upstream: Upstream,
    secrets: tempfile::TempDir,
}

impl Bench {
    /// Access tokens of accounts last so long.
    async fn start(lasts_secs: u64) -> Result<Self> {
        let secrets = tempfile::tempdir()?;
        std::fs::create_dir(secrets.path().join("demo"))?;
        let file = secrets.path().join("demo/client");
        std::fs::write(&file, "s+ecret")?;
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
        std::fs::write(secrets.path().join("operator"), "a-token-for-operators")?;
        let operator = secrets.path().join("operator");
        std::fs::set_permissions(operator, PermissionsExt::from_mode(0o600))?;
        Ok(Self {
            issuer: Issuer::provider("mcp", 600).await?,
            accounts: Issuer::provider("mcp", lasts_secs).await?,
            upstream: Upstream::start().await?,
            secrets,
        })
    }

    /// The file with the token of operators.
    fn operator(&self) -> std::path::PathBuf {
        self.secrets.path().join("operator")
    }

    fn setup(&self, more: &str) -> Setup {
        let setup = Setup::config(format!(
            "front.public_url = '{PUBLIC}'\nfront.allowed_hosts = ['127.0.0.1']\n\
             node.secrets_dir = '{secrets}'\n[tenants.demo]\nauth = 'oauth'\n[tenants.demo.oauth]\n\
             issuer = '{issuer}'\n[tenants.demo.backends.main]\nkind = 'http'\nurl = '{url}/mcp'\n\
             allow_networks = ['127.0.0.0/8']\n[tenants.demo.backends.main.credential]\n\
             grant = 'authorization_code'\nissuer = '{accounts}'\nclient_id = 'linker'\n\
             client_secret = '${{file:client}}'\nscopes = ['mcp']\n\
             [tenants.demo.backends.main.credential.sign_in]\nclient_id = 'linker'\n\
             client_secret = '${{file:client}}'\nscopes = ['mcp']\n{more}",
            secrets = self.secrets.path().display(),
            issuer = self.issuer.url,
            accounts = self.accounts.url,
            url = self.upstream.url,
        ));
        setup.with("admin.token_file", self.operator().display())
    }

    /// A user's token for the endpoint.
    async fn token(&self, user: &str) -> Result<String> {
        self.issuer.mint(user, &format!("{PUBLIC}/demo/mcp")).await
    }

    /// A client of this user, which has a session. A node looks only every 200 ms whether an account is linked: a
    /// user takes longer for that than these browsers.
    async fn opened(&self, node: &Node, user: &str) -> Result<Client> {
        let (key, until) = (self.token(user).await?, Instant::now() + PATIENCE);
        loop {
            let client = Client::new(node.demo(), NEWEST).with_key(&key);
            match client.opened(json!({ "elicitation": { "url": {} } })).await {
                Err(error) if error.to_string().contains("-32042") => {
                    ensure!(Instant::now() < until, "the account is not linked: {error}");
                    sleep(Duration::from_millis(50)).await;
                }
                opened => return opened,
            }
        }
    }

    /// The page that a client of this user is given, which gets no session without.
    async fn link(&self, node: &Node, user: &str) -> Result<String> {
        let client = Client::new(node.demo(), NEWEST).with_key(&self.token(user).await?);
        let introduction = client.introduction(json!({ "elicitation": { "url": {} } }));
        let response = client.send(client.message("initialize", introduction)).await?;
        check::status(&response, 200)?;
        let error = &final_response(response).await?["error"];
        ensure!(error["code"] == -32042, "{error}");
        let elicitation = &error["data"]["elicitations"][0];
        ensure!(elicitation["mode"] == "url", "{error}");
        let url = elicitation["url"].as_str().context("no URL")?;
        let id = elicitation["elicitationId"].as_str().context("no id")?;
        ensure!(url == format!("{PUBLIC}/demo/link/{id}") && id.len() >= 43, "{error}");
        ensure!(error["message"].to_string().contains(url), "{error}");
        Ok(url.to_owned())
    }
}

/// A browser of one user. It reaches the nodes in turn.
struct Browser<'a> {
    nodes: Vec<&'a Node>,
    cookies: HashMap<String, HashMap<String, String>>,
    /// The pages that were opened.
    opened: Vec<String>,
}

impl<'a> Browser<'a> {
    fn new(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let nodes = nodes.into_iter().collect();
        Self { nodes, cookies: HashMap::new(), opened: Vec::new() }
    }

    /// Opens a page, and the one that it redirects to, if any.
    async fn step(&mut self, url: &str) -> Result<(u16, Result<String, String>)> {
        let parsed = reqwest::Url::parse(url)?;
        let origin = parsed.origin().ascii_serialization();
        let node = self.nodes[self.opened.len() % self.nodes.len()];
        self.opened.push(url.to_owned());
        let target = url.replace(PUBLIC, &node.base);
        let http =
            reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        let cookies = self.cookies.entry(origin).or_default();
        let header: Vec<_> =
            cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = http.get(target).header(COOKIE, header.join("; "));
        let response = request.header("sec-fetch-site", "cross-site").send().await?;
        for set in response.headers().get_all(SET_COOKIE) {
            let (pair, attributes) = set.to_str()?.split_once(';').unwrap_or((set.to_str()?, ""));
            let (name, value) = pair.split_once('=').context("no cookie")?;
            if url.starts_with(PUBLIC) {
                for wanted in ["HttpOnly", "Secure", "SameSite=Lax", "Path=/;"] {
                    ensure!(attributes.contains(wanted), "{attributes}");
                }
            }
            cookies.insert(name.to_owned(), value.to_owned());
        }
        let status = response.status().as_u16();
        if let Some(to) = response.headers().get(LOCATION) {
            let to = parsed.join(to.to_str()?)?;
            return Ok((status, Ok(to.to_string())));
        }
        Ok((status, Err(response.text().await?)))
    }

    /// Opens a page, and follows its redirects to the last one.
    async fn open(&mut self, url: &str) -> Result<(u16, String)> {
        let mut url = url.to_owned();
        for _ in 0..20 {
            match self.step(&url).await? {
                (_, Ok(next)) => url = next,
                (status, Err(text)) => return Ok((status, text)),
            }
        }
        anyhow::bail!("too many redirects: {:?}", self.opened)
    }
}

// holds: ELI-05, ELI-08, ELI-09
#[tokio::test]
async fn a_user_links_an_account_and_another_user_cannot_use_the_link() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let link = bench.link(&node, "ada").await?;
    ensure!(bench.link(&node, "ada").await? == link, "another link was made");
    ensure!(bench.upstream.seen().await?.is_empty(), "a request without a token was sent");
    bench.accounts.control("user", json!({ "sub": "ada.at.home" })).await?;
    let mut browser = Browser::new([&node]);
    let (status, text) = browser.open(&link).await?;
    ensure!(status == 200 && text.contains("account is linked"), "{status} {text}");
    let client = bench.opened(&node, "ada").await?;
    let who = Upstream::whoami(&client).await?;
    ensure!(who["sub"] == "ada.at.home", "{who}");
    ensure!(who["aud"] == format!("{}/mcp", bench.upstream.url), "{who}");
    let (status, _) = Browser::new([&node]).open(&link).await?;
    ensure!(status == 404, "a link was used twice");

    // Bob's client gets a link of its own. Ada, who opens it, links nothing.
    let of_bob = bench.link(&node, "bob").await?;
    ensure!(of_bob != link);
    let mut browser = Browser::new([&node]);
    let (status, text) = browser.open(&of_bob).await?;
    ensure!(status == 403 && text.contains("another user"), "{status} {text}");
    ensure!(!browser.opened.iter().any(|url| url.starts_with(&bench.accounts.url)));
    bench.issuer.control("user", json!({ "sub": "bob" })).await?;
    let (status, text) = Browser::new([&node]).open(&bench.link(&node, "bob").await?).await?;
    ensure!(status == 200, "{status} {text}");
    Upstream::whoami(&bench.opened(&node, "bob").await?).await?;

    // After a revocation, also one that was taken back, the account does not count.
    for lift in [&[][..], &["--lift"]] {
        let mut command = std::process::Command::new(tools::built("roundhouse"));
        command.args(["revoke", "--admin", &node.admin, "--token-file"]).arg(bench.operator());
        command.args(["--tenant", "demo", "--subject", "bob"]).args(lift);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    ensure!(bench.link(&node, "bob").await? != of_bob);
    Upstream::whoami(&client).await?;
    let output = node.output();
    ensure!(!output.contains("eyJ"), "a token is in the log: {output}");
    Ok(())
}

#[tokio::test]
async fn pages_are_under_the_rate_of_their_address() -> Result<()> {
    let bench = Bench::start(600).await?;
    let setup = bench.setup("").with("front.trusted_proxies", "127.0.0.0/8");
    let setup = setup.with("front.sessions_per_address_per_sec", 1);
    let node = Node::start(&setup.with("front.sessions_per_address_burst", 2))?;
    let open = async |address: &str| {
        let page = reqwest::Client::new().get(format!("{}/demo/link/unknown", node.base));
        let response = page.header("x-forwarded-for", address).send().await?;
        let after = response.headers().get("retry-after").cloned();
        anyhow::Ok((response.status().as_u16(), after.is_some()))
    };
    for address in ["203.0.113.7", "203.0.113.8"] {
        let (mut gone, mut refused) = (0, 0);
        // A few places may become free meanwhile.
        while refused < 2 {
            match open(address).await? {
                (404, false) => gone += 1,
                (429, true) => refused += 1,
                other => anyhow::bail!("{other:?}"),
            }
            ensure!(gone < 40, "{address} is not limited");
        }
        ensure!(gone >= 2, "{address} may open two pages at once");
    }
    Ok(())
}

#[tokio::test]
async fn a_step_is_of_one_browser_and_counts_once() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let link = bench.link(&node, "ada").await?;
    // One browser begins, and another one comes back.
    let mut first = Browser::new([&node]);
    let mut url = link.clone();
    while !url.contains("/link/signed-in") {
        url = first.step(&url).await?.1.map_err(anyhow::Error::msg)?;
    }
    let mut second = Browser::new([&node]);
    let (status, _next) = second.step(&link).await?;
    ensure!(status == 302);
    let (status, text) = second.open(&url).await?;
    ensure!(status == 403 && text.contains("another browser"), "{status} {text}");
    let (status, _) = first.open(&url).await?;
    ensure!(status == 403, "a state counted twice");
    // The same up to the code of the account.
    let mut url = link.clone();
    while !url.contains("/link/agreed") {
        url = first.step(&url).await?.1.map_err(anyhow::Error::msg)?;
    }
    let other_issuer = url.replace("iss=", "iss=https%3A%2F%2Fother.example&was=");
    ensure!(other_issuer != url, "the authorization server does not name itself: {url}");
    let (status, text) = first.open(&other_issuer).await?;
    ensure!(status == 502, "{status} {text}");
    ensure!(first.open(&url).await?.0 == 403, "a state counted twice");
    for wrong in ["agreed", "signed-in", "agreed?state=x&code=y", "unknown"] {
        let (status, _) = first.open(&format!("{PUBLIC}/demo/link/{wrong}")).await?;
        ensure!(matches!(status, 403 | 404), "{wrong}: {status}");
    }
    // A user who does not agree has linked nothing, and may try again.
    bench.accounts.control("user", json!({})).await?;
    let (status, text) = Browser::new([&node]).open(&link).await?;
    ensure!(status == 403 && text.contains("did not agree"), "{status} {text}");
    bench.accounts.control("user", json!({ "sub": "ada" })).await?;
    ensure!(Browser::new([&node]).open(&link).await?.0 == 200);
    Upstream::whoami(&bench.opened(&node, "ada").await?).await?;
    Ok(())
}

#[tokio::test]
async fn a_token_is_used_to_its_end_while_the_authorization_server_is_away() -> Result<()> {
    // It is refreshed in the last quarter of its life.
    let (mut bench, redis) = (Bench::start(40).await?, Redis::start()?);
    let setup = bench.setup("").with("store.url", redis.url());
    let setup = setup.with("cluster.listen", "127.0.0.1:0");
    let setup = setup.with("cluster.secret", "known to these two nodes, no secret");
    let nodes = [Node::start(&setup)?, Node::start(&setup)?];
    for node in &nodes {
        reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
    }
    let (status, text) = Browser::new(&nodes).open(&bench.link(&nodes[0], "ada").await?).await?;
    ensure!(status == 200, "{status} {text}");
    bench.accounts.kill().await?;
    let mut client = bench.opened(&nodes[0], "ada").await?;
    let first = Upstream::whoami(&client).await?;
    let failed = "roundhouse_upstream_token_requests_total{grant=\"authorization_code\",outcome=\"unavailable\"}";
    let until = Instant::now() + 3 * PATIENCE;
    while nodes[0].metric(failed).await?.context("no such metric")? == 0.0 {
        ensure!(Instant::now() < until, "the token is not due");
        ensure!(Upstream::whoami(&client).await?["jti"] == first["jti"]);
        sleep(Duration::from_millis(100)).await;
    }
    // The other node has used none yet.
    for node in nodes.iter().rev() {
        client.url = node.demo();
        ensure!(Upstream::whoami(&client).await?["jti"] == first["jti"]);
    }
    Ok(())
}

#[tokio::test]
async fn all_nodes_of_a_cluster_link_use_and_refresh_the_tokens_of_an_account() -> Result<()> {
    // They are refreshed in the last quarter of their lives.
    let (bench, redis) = (Bench::start(8).await?, Redis::start()?);
    let setup = bench.setup("").with("store.url", redis.url());
    let setup = setup.with("cluster.listen", "127.0.0.1:0");
    let setup = setup.with("cluster.secret", "known to these three nodes, no secret");
    let nodes = [Node::start(&setup)?, Node::start(&setup)?, Node::start(&setup)?];
    for node in &nodes {
        reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
    }
    let link = bench.link(&nodes[0], "ada").await?;
    ensure!(bench.link(&nodes[1], "ada").await? == link, "each node has made a link");
    let (status, text) = Browser::new(&nodes).open(&link).await?;
    ensure!(status == 200, "{status} {text}");
    let mut client = bench.opened(&nodes[1], "ada").await?;
    let first = Upstream::whoami(&client).await?;
    let until = Instant::now() + PATIENCE;
    let mut seen = vec![first["jti"].clone()];
    while seen.len() < 3 {
        for node in &nodes {
            client.url = node.demo();
            let jti = Upstream::whoami(&client).await?["jti"].clone();
            if !seen.contains(&jti) {
                seen.push(jti);
            }
        }
        ensure!(Instant::now() < until, "the tokens are not refreshed: {seen:?}");
        sleep(Duration::from_millis(100)).await;
    }
    // One that the server refuses is replaced, after an error at most at another node than the owner's.
    bench.upstream.revoke().await?;
    let until = Instant::now() + PATIENCE;
    client.url = nodes[2].demo();
    while client.request("tools/call", json!({ "name": "whoami" })).await?["error"].is_object() {
        ensure!(Instant::now() < until, "a refused token is used on");
        sleep(Duration::from_millis(100)).await;
    }
    redis.ask("CONFIG SET rdbcompression no")?;
    redis.ask("SAVE")?;
    let folder = redis.told("CONFIG GET dir")?.pop().context("no folder")?;
    let file = std::path::Path::new(&folder).join("dump.rdb");
    let kept = std::fs::read(&file)?;
    std::fs::remove_file(file)?;
    let has = |text: &str| kept.windows(text.len()).any(|window| window == text.as_bytes());
    ensure!(has(":note:"), "the tokens are not in Redis");
    ensure!(!has("eyJ") && !has("refresh"), "a token is in Redis as it is");
    Ok(())
}

/// Runs `roundhouse unlink` for `ada`, and returns what it prints.
async fn unlink(bench: &Bench, node: &Node, more: &[&str]) -> Result<std::process::Output> {
    let mut command = std::process::Command::new(tools::built("roundhouse"));
    command.args(["unlink", "--admin", &node.admin, "--token-file"]).arg(bench.operator());
    command.args(["--tenant", "demo", "--subject", "ada", "--json"]).args(more);
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

#[tokio::test]
async fn an_operator_unlinks_an_account_at_all_nodes() -> Result<()> {
    // Nodes look into the store a few seconds after each other.
    let (bench, redis, log) = (Bench::start(8).await?, Redis::start()?, Log::new()?);
    let setup = bench.setup("").with("store.url", redis.url());
    let setup = setup.with("cluster.listen", "127.0.0.1:0");
    let setup = setup.with("cluster.secret", "known to these two nodes, and no secret");
    let nodes = [Node::start(&log.of(setup.clone()))?, Node::start(&setup)?];
    for node in &nodes {
        reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
    }
    let (status, text) = Browser::new(&nodes).open(&bench.link(&nodes[0], "ada").await?).await?;
    ensure!(status == 200, "{status} {text}");
    let mut client = bench.opened(&nodes[0], "ada").await?;
    for node in &nodes {
        client.url = node.demo();
        Upstream::whoami(&client).await?;
    }
    let wrong = unlink(&bench, &nodes[0], &["--backend", "other"]).await?;
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    ensure!(!wrong.status.success() && told.contains("no such backend"), "{told}");
    let kept = redis.told("KEYS *:note:*")?.len();
    for (unlinked, left) in [(true, kept - 1), (false, kept - 1)] {
        let output = unlink(&bench, &nodes[0], &["--backend", "main"]).await?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let accounts = serde_json::from_str::<Value>(&told)?["accounts"].clone();
        ensure!(accounts == json!([{ "backend": "main", "unlinked": unlinked }]), "{told}");
        let now = redis.told("KEYS *:note:*")?.len();
        ensure!(now == left, "{kept} notes before, {now} notes now");
    }
    let is_of = |outcome: &'static str| {
        move |record: &Value| record["action"] == "unlink account" && record["outcome"] == outcome
    };
    let record = log.one(is_of("unlinked")).await?;
    ensure!(record["subject"] == "ada" && record["tenant"] == "demo", "{record}");
    ensure!(record["target"] == "main" && record["by"].is_string(), "{record}");
    log.one(is_of("not linked")).await?;
    // No node uses what it has in memory for long.
    let until = Instant::now() + PATIENCE;
    for node in &nodes {
        client.url = node.demo();
        while client.request("tools/call", json!({ "name": "whoami" })).await?["error"]["code"]
            != -32042
        {
            ensure!(Instant::now() < until, "a node uses the tokens on");
            sleep(Duration::from_millis(100)).await;
        }
    }
    let (status, text) = Browser::new(&nodes).open(&bench.link(&nodes[1], "ada").await?).await?;
    ensure!(status == 200, "it cannot be linked again: {status} {text}");
    let output = nodes[0].output();
    let mut words = output.split(|letter: char| !letter.is_alphanumeric());
    ensure!(!words.any(|word| word == "ada"), "a subject is in the log: {output}");
    Ok(())
}

#[tokio::test]
async fn of_several_servers_the_others_work_before_an_account_is_linked() -> Result<()> {
    let bench = Bench::start(600).await?;
    let own = "[tenants.demo.backends.own]\nkind = 'native'\nname = 'everything'\nprefix = 'own'\n";
    let node = Node::start(&bench.setup(own))?;
    let client = bench.opened(&node, "ada").await?;
    let listed = client.request("tools/list", json!({})).await?;
    ensure!(listed.to_string().contains("own__rh_echo"), "{listed}");
    let answer = client.request("tools/call", json!({ "name": "main__whoami" })).await?;
    ensure!(answer["error"]["code"] == -32042, "{answer}");
    let link = &answer["error"]["data"]["elicitations"][0]["url"];
    let link = link.as_str().with_context(|| format!("no link: {answer}"))?;
    // A client that does not know this error gets an ordinary one, with the same URL in its text.
    let older = Client::new(node.demo(), "2025-06-18").with_key(&bench.token("ada").await?);
    let older = older.opened(json!({ "elicitation": { "url": {} } })).await?;
    let answer = older.request("tools/call", json!({ "name": "main__whoami" })).await?;
    let error = &answer["error"];
    ensure!(error["code"] == -32000 && error.get("data").is_none(), "{answer}");
    ensure!(error["message"].to_string().contains(link), "{answer}");
    let (status, text) = Browser::new([&node]).open(link).await?;
    ensure!(status == 200, "{status} {text}");
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = client.request("tools/call", json!({ "name": "main__whoami" })).await?;
        if answer["result"].is_object() {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{answer}");
        sleep(Duration::from_millis(200)).await;
    }
}
