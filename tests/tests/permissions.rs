//! What clients may do at an endpoint, by scopes and claims; and that they see nothing else of it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::issuers::{Issuer, in_an_hour};
use tests::mcp::{Client, final_response};
use tests::nodes::port;
use tests::recorded::Recorded;
use tests::sse::{End, Events};
use tests::{Node, Setup, check};

const NEWEST: &str = "2025-11-25";

/// Two clients with keys: `reader` has the scope `read`, `writer` has `read` and `write`.
struct Ruled {
    reader: String,
    writer: String,
    text: String,
}

impl Ruled {
    fn new() -> Self {
        let [reader, writer] = ["1", "2"].map(|digit| format!("rhk_{}", digit.repeat(64)));
        let text = format!(
            "[tenants.demo]
             auth = 'keys'
             [tenants.demo.keys.reader]
             sha256 = '{}'
             scopes = ['read', 'no-templates']
             [tenants.demo.keys.writer]
             sha256 = '{}'
             scopes = ['read', 'write']
             [tenants.demo.permissions.all]
             deny_methods = ['logging/*']
             [tenants.demo.permissions.read]
             scopes = ['read']
             tools = ['test_simple_*', 'rh_count', 'rh_record*']
             prompts = ['test_simple_*']
             resources = ['test://*']
             deny_resources = ['test://watched-*']
             deny_tools = ['rh_crash']
             [tenants.demo.permissions.no_templates]
             scopes = ['no-templates']
             deny_resources = ['test://template/*']
             [tenants.demo.permissions.write]
             scopes = ['write']
             tools = ['*']
             prompts = ['*']
             resources = ['*']
             [tenants.demo.backends.main]
             kind = 'native'
             name = 'everything'
            ",
            check::sha256(&reader),
            check::sha256(&writer)
        );
        Self { reader, writer, text }
    }
}

async fn opened(node: &Node, key: &str) -> Result<Client> {
    Client::new(node.demo(), NEWEST).with_key(key).opened(json!({})).await
}

/// The names in a list of the server, over all of its pages.
async fn names(client: &Client, method: &str, list: &str, key: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        let answer = client.ask(client.message(method, params)).await?;
        let entries = answer["result"][list].as_array().with_context(|| format!("{answer}"))?;
        let name = |entry: &Value| entry[key].as_str().map(str::to_owned);
        names.extend(entries.iter().filter_map(name));
        match answer["result"].get("nextCursor") {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => return Ok(names),
        }
    }
}

#[tokio::test]
async fn a_client_sees_in_lists_what_it_may_use_and_nothing_else() -> Result<()> {
    let settings = Ruled::new();
    let node = Node::start(&Setup::config(&settings.text))?;
    let (reader, writer) =
        (opened(&node, &settings.reader).await?, opened(&node, &settings.writer).await?);
    let tools = names(&reader, "tools/list", "tools", "name").await?;
    let is_read = |tool: &String| {
        tool.starts_with("test_simple_") || tool == "rh_count" || tool.starts_with("rh_record")
    };
    ensure!(tools.len() >= 3 && tools.iter().all(is_read), "{tools:?}");
    let all = names(&writer, "tools/list", "tools", "name").await?;
    ensure!(all.len() > 10 && !all.contains(&"rh_crash".to_owned()), "{all:?}");
    let prompts = names(&reader, "prompts/list", "prompts", "name").await?;
    ensure!(!prompts.is_empty() && prompts.iter().all(|p| p.starts_with("test_simple_")));
    let resources = names(&reader, "resources/list", "resources", "uri").await?;
    ensure!(!resources.is_empty() && resources.iter().all(|r| r.starts_with("test://static-")));
    let templates = "resources/templates/list";
    ensure!(names(&reader, templates, "resourceTemplates", "uriTemplate").await?.is_empty());
    ensure!(!names(&writer, templates, "resourceTemplates", "uriTemplate").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn what_a_client_may_not_use_is_not_there_for_it() -> Result<()> {
    let settings = Ruled::new();
    let node = Node::start(&Setup::config(&settings.text))?;
    let reader = opened(&node, &settings.reader).await?;
    let writer = opened(&node, &settings.writer).await?;
    let read = |uri: &str| reader.message("resources/read", json!({ "uri": uri }));
    for allowed in [
        reader.call("test_simple_text", json!({})),
        reader.message("prompts/get", json!({ "name": "test_simple_prompt" })),
        read("test://static-text"),
        reader.message("resources/subscribe", json!({ "uri": "test://static-text" })),
        reader.message("ping", json!({})),
        writer.call("test_error_handling", json!({})),
    ] {
        let client =
            if allowed["params"]["name"] == "test_error_handling" { &writer } else { &reader };
        let answer = client.ask(allowed.clone()).await?;
        ensure!(answer.get("result").is_some(), "{allowed}: {answer}");
    }
    let completion = json!({
        "ref": { "type": "ref/prompt", "name": "test_prompt_with_arguments" },
        "argument": { "name": "arg1", "value": "a" }
    });
    for refused in [
        reader.call("test_error_handling", json!({})),
        // Servers could read the name in two ways.
        json!({ "jsonrpc": "2.0", "id": 71, "method": "tools/call",
            "params": { "name": "test_simple_text", "Name": "test_error_handling" } }),
        reader.message("prompts/get", json!({ "name": "test_prompt_with_arguments" })),
        reader.message("completion/complete", completion),
        read("test://watched-resource"),
        read("TEST://watched-resource"),
        read("test://%77atched-resource"),
        read(" test://watched-resource"),
        read("te\tst://watched-resource"),
        reader.message("resources/subscribe", json!({ "uri": "test://watched-resource" })),
        reader.message("logging/setLevel", json!({ "level": "debug" })),
        reader.message("own/method", json!({})),
    ] {
        let response = reader.send(refused.clone()).await?;
        check::status(&response, 200).with_context(|| refused.to_string())?;
        let answer = final_response(response).await?;
        ensure!(answer["error"]["code"] == -32602, "{refused}: {answer}");
        ensure!(answer["id"] == refused["id"], "{refused}: {answer}");
    }
    // Denied for each client, also by a rule that another rule contradicts.
    let answer = writer.ask(writer.call("rh_crash", json!({}))).await?;
    ensure!(answer["error"]["message"] == "there is no such tool", "{answer}");
    let twice = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"test_simple_text","name":"test_error_handling"}}"#;
    let answer = final_response(reader.send_bytes(twice).await?).await?;
    ensure!(answer["error"]["code"] == -32602, "{answer}");
    reader.is_well().await
}

/// A client that may not begin a session begins none with either transport.
#[tokio::test]
async fn a_client_that_may_not_initialize_opens_no_session() -> Result<()> {
    let settings = Ruled::new();
    let denied = "['logging/*', 'initialize']";
    let node = Node::start(&Setup::config(settings.text.replace("['logging/*']", denied)))?;
    let client = Client::new(node.demo(), NEWEST).with_key(&settings.reader);
    let introduction = client.introduction(json!({}));
    let response = client.send(client.message("initialize", introduction.clone())).await?;
    check::refused(response, 403, -32602, check::Id::Any).await?;
    let old = Client::new(node.demo().replace("/mcp", "/sse"), "2024-11-05");
    let old = old.with_key(&settings.reader);
    check::refused(old.get(None).await?, 403, -32602, check::Id::Any).await?;
    ensure!(node.metric("roundhouse_sessions").await? == Some(0.0));
    Ok(())
}

/// A client that is kept out by a change of the rules gets nothing of the session that it had.
#[tokio::test]
async fn a_client_that_is_kept_out_neither_reads_nor_answers() -> Result<()> {
    let settings = Ruled::new();
    let setup = Setup::config(&settings.text).with("node.reload_secs", 1);
    let node = Node::start(&setup)?;
    let reader = opened(&node, &settings.reader).await?;
    let arguments = json!({ "n": 600, "interval_ms": 20 });
    let mut stream =
        reader.stream(reader.call_with_progress("rh_count", arguments, json!(1))).await?;
    let event = loop {
        if let Some(id) = stream.next().await?.context("no event with an id")?.id {
            break id;
        }
    };
    let out = "[tenants.demo.permissions.out]\nscopes = ['no-templates']\ndeny_methods = ['*']\n";
    std::fs::write(
        node.config_file(),
        settings
            .text
            .replace("[tenants.demo.backends.main]", &format!("{out}[tenants.demo.backends.main]")),
    )?;
    while stream.next().await?.is_some() {}
    check::refused(reader.get(Some(&event)).await?, 403, -32602, check::Id::Any).await?;
    check::refused(reader.get(None).await?, 403, -32602, check::Id::Any).await?;
    let answered = reader.answer(&json!(1), json!({})).await?;
    check::refused(answered, 403, -32602, check::Id::Any).await?;
    opened(&node, &settings.writer).await?.is_well().await
}

#[tokio::test]
async fn each_member_of_a_batch_is_judged_by_itself() -> Result<()> {
    let settings = Ruled::new();
    let node = Node::start(&Setup::config(&settings.text))?;
    let client = Client::new(node.demo(), "2025-03-26").with_key(&settings.reader);
    let reader = client.opened(json!({})).await?;
    let batch = json!([
        reader.call("test_simple_text", json!({})),
        reader.call("test_error_handling", json!({})),
        reader.message("logging/setLevel", json!({ "level": "debug" })),
        reader.message("tools/list", json!({})),
    ]);
    let ids: Vec<_> =
        batch.as_array().context("no batch")?.iter().map(|m| m["id"].clone()).collect();
    let response = reader.send(batch).await?;
    let kind = check::header(&response, "content-type")?.to_owned();
    let mut answers = Vec::new();
    if kind.starts_with("application/json") {
        answers = response.json::<Vec<Value>>().await?;
    } else {
        let mut events = Events::of(response)?;
        while let Some((_, message)) = events.message().await? {
            match message {
                Value::Array(all) => answers.extend(all),
                one => answers.push(one),
            }
        }
    }
    let of = |id: &Value| answers.iter().find(|answer| answer["id"] == *id).context("no answer");
    ensure!(of(&ids[0])?.get("result").is_some(), "{answers:?}");
    ensure!(of(&ids[1])?["error"]["code"] == -32602, "{answers:?}");
    ensure!(of(&ids[2])?["error"]["code"] == -32602, "{answers:?}");
    let tools = of(&ids[3])?["result"]["tools"].as_array().context("no tools")?;
    ensure!(!tools.iter().any(|tool| tool["name"] == "test_error_handling"), "{tools:?}");
    Ok(())
}

#[tokio::test]
async fn another_node_and_a_resumed_stream_show_no_more() -> Result<()> {
    let settings = Ruled::new();
    let setup = Setup::config(&settings.text);
    let cluster = Recorded::start([setup.clone(), setup]).await?;
    let client = Client::new(cluster.node(0)?.demo(), "2025-03-26").with_key(&settings.reader);
    let mut reader = client.opened(json!({})).await?;
    reader.url = cluster.node(1)?.demo();
    let tools = names(&reader, "tools/list", "tools", "name").await?;
    ensure!(tools.iter().all(|tool| tool != "test_error_handling"), "{tools:?}");
    let answer = reader.ask(reader.call("test_error_handling", json!({}))).await?;
    ensure!(answer["error"]["code"] == -32602, "{answer}");
    // A list on a stream that its client loses, and resumes at the other node.
    let count = json!({ "n": 10, "interval_ms": 30 });
    let batch = json!([
        reader.call_with_progress("rh_count", count, json!(1)),
        reader.message("tools/list", json!({})),
    ]);
    let mut events = Events::of(reader.send(batch).await?)?;
    // The list may be in the first event, so the client resumes before that.
    let before = loop {
        let event = events.next().await?.context("no event with an id")?;
        if let Some(id) = event.id {
            let (stream, number) = id.rsplit_once('-').context("another form of id")?;
            break format!("{stream}-{}", number.parse::<u64>()? - 1);
        }
    };
    drop(events);
    reader.url = cluster.node(0)?.demo();
    let mut events = reader.resume(&before).await?;
    let mut lists = Vec::new();
    while let Some((_, message)) = events.message().await? {
        let all = message.as_array().cloned().unwrap_or_else(|| vec![message]);
        lists.extend(all.into_iter().filter(|message| message["result"]["tools"].is_array()));
    }
    ensure!(lists.len() == 1, "{lists:?}");
    ensure!(lists[0]["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()));
    ensure!(!lists[0].to_string().contains("test_error_handling"), "{lists:?}");
    Ok(())
}

#[tokio::test]
async fn a_token_that_lacks_a_scope_is_told_which_ones_to_get() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let (settings, listen) = (Ruled::new(), format!("127.0.0.1:{}", port()?));
    let base = format!("http://{listen}");
    let oauth = format!(
        "[tenants.demo.oauth]\nissuer = '{}'\nscopes = ['mcp']\n[tenants.demo.permissions.all]",
        issuer.url
    );
    let text = settings.text.replace("'keys'", "'keys, oauth'");
    let text = text.replace("[tenants.demo.permissions.all]", &oauth);
    let text = format!("front.public_url = '{base}'\n{text}");
    let node = Node::start(&Setup::config(text).listen(&listen))?;
    let token = async |scope: &str| {
        let claims = json!({ "sub": "ada", "aud": format!("{base}/demo/mcp"), "scope": scope });
        issuer.token(json!({ "kid": "rs", "claims": claims })).await
    };
    let client = opened(&node, &token("mcp read openid").await?).await?;
    let call = client.call("test_error_handling", json!({}));
    let refused = client.send(call.clone()).await?;
    check::status(&refused, 403)?;
    let challenge = check::header(&refused, "www-authenticate")?.to_owned();
    ensure!(challenge.contains("error=\"insufficient_scope\""), "{challenge}");
    ensure!(challenge.contains("scope=\"mcp read write\""), "{challenge}");
    let answer: Value = refused.json().await?;
    ensure!(answer["id"] == call["id"], "{answer}");
    // With the scopes, the same session goes on. Without them, again not.
    let more = client.twin().with_key(&token("mcp read write").await?);
    ensure!(more.ask(call.clone()).await?.get("result").is_some());
    check::status(&client.send(call).await?, 403)?;
    let metadata = format!("{base}/.well-known/oauth-protected-resource/demo/mcp");
    let said: Value = reqwest::get(metadata).await?.json().await?;
    ensure!(said["scopes_supported"] == json!(["mcp", "no-templates", "read", "write"]), "{said}");
    Ok(())
}

#[tokio::test]
async fn claims_of_a_token_decide_like_scopes_also_after_a_change_of_the_rules() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let listen = format!("127.0.0.1:{}", port()?);
    let base = format!("http://{listen}");
    let settings = |group: &str| {
        format!(
            "front.public_url = '{base}'
             [tenants.demo]
             auth = 'oauth'
             [tenants.demo.oauth]
             issuer = '{}'
             introspection_url = '{}'
             client_id = 'node'
             client_secret = 's+ecret'
             [tenants.demo.permissions.staff]
             claims = {{ groups = ['{group}'], 'https://acme.example/level' = ['2', '3'] }}
             tools = ['test_simple_*', 'rh_count']
             [tenants.demo.permissions.admins]
             claims = {{ 'realm_access.roles' = ['admin'] }}
             scopes = ['write']
             tools = ['*']
             [tenants.demo.permissions.suspended]
             claims = {{ suspended = ['true'] }}
             deny_tools = ['*']
             [tenants.demo.backends.main]
             kind = 'native'
             name = 'everything'
            ",
            issuer.url,
            issuer.introspection_url()
        )
    };
    let setup = Setup::config(settings("staff")).with("node.reload_secs", 1);
    let node = Node::start(&setup.listen(&listen))?;
    let claims = |more: Value| {
        let level = "https://acme.example/level";
        let mut claims = json!({
            "sub": "ada", "aud": format!("{base}/demo/mcp"), level: 3, "groups": ["other", "staff"]
        });
        for (claim, value) in more.as_object().into_iter().flatten() {
            claims[claim] = value.clone();
        }
        claims
    };
    let token = async |more: Value| {
        opened(&node, &issuer.token(json!({ "kid": "rs", "claims": claims(more) })).await?).await
    };
    let staff = token(json!({})).await?;
    let simple = |client: &Client| client.call("test_simple_text", json!({}));
    ensure!(staff.ask(simple(&staff)).await?.get("result").is_some());
    let tools = names(&staff, "tools/list", "tools", "name").await?;
    ensure!(tools.iter().any(|tool| tool == "rh_count"), "{tools:?}");
    ensure!(!tools.iter().any(|tool| tool == "test_error_handling"), "{tools:?}");
    // An issuer that is asked about a token says its claims.
    let mut says = claims(json!({ "groups": "staff" }));
    (says["active"], says["exp"]) = (json!(true), json!(in_an_hour()));
    issuer.introspects("opaque", says).await?;
    let opaque = opened(&node, "opaque").await?;
    ensure!(opaque.ask(simple(&opaque)).await?.get("result").is_some());
    for other in [
        json!({ "groups": ["other"] }),
        json!({ "groups": "staff other" }),
        json!({ "groups": null }),
        json!({ "https://acme.example/level": 1 }),
        json!({ "suspended": true }),
        json!({ "suspended": "true", "scope": "write", "realm_access": { "roles": ["admin"] } }),
    ] {
        let client = token(other.clone()).await?;
        let answer = client.ask(simple(&client)).await?;
        ensure!(answer["error"]["message"] == "there is no such tool", "{other}: {answer}");
        let tools = names(&client, "tools/list", "tools", "name").await?;
        ensure!(tools.is_empty(), "{other}: {tools:?}");
    }
    // To ask for another scope helps only a client that has the claim.
    let failing = |client: &Client| client.call("test_error_handling", json!({}));
    let answer = staff.ask(failing(&staff)).await?;
    ensure!(answer["error"]["message"] == "there is no such tool", "{answer}");
    let admin = token(json!({ "realm_access": { "roles": ["admin"] } })).await?;
    let refused = admin.send(failing(&admin)).await?;
    check::status(&refused, 403)?;
    let challenge = check::header(&refused, "www-authenticate")?;
    ensure!(challenge.contains("scope=\"write\""), "{challenge}");
    // Other values count from now on: the token is looked at again, and the stream ends.
    let arguments = json!({ "n": 600, "interval_ms": 100 });
    let mut stream =
        staff.stream(staff.call_with_progress("rh_count", arguments, json!(1))).await?;
    stream.next().await?.context("no event")?;
    std::fs::write(node.config_file(), settings("other"))?;
    while stream.next().await?.is_some() {}
    ensure!(stream.end == Some(End::Cut), "{:?}", stream.end);
    ensure!(staff.ask(simple(&staff)).await?.get("result").is_some(), "it has that group as well");
    let other = token(json!({ "groups": ["staff"] })).await?;
    let answer = other.ask(simple(&other)).await?;
    ensure!(answer["error"]["message"] == "there is no such tool", "{answer}");
    Ok(())
}
