//! The messages of a tenant's server reach the client unchanged, and those of the client reach the
//! server: tools, resources, prompts, completion, roots, sampling, elicitation.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::check::{self, Id};
use tests::mcp::{Client, REVISIONS, final_response, result};
use tests::sse::PATIENCE;
use tests::{Node, Setup, tools};

const NEWEST: &str = "2025-11-25";

// holds: TOOL-06, TOOL-07, TOOL-08, TOOL-13, RES-10, RPC-18
#[tokio::test]
async fn what_a_server_says_passes_byte_for_byte() -> Result<()> {
    let source = std::fs::read_to_string(tools::root().join("tests/servers/plain.py"))?;
    let node = Node::start(&plain())?;
    for revision in [NEWEST, tests::mcp::DRAFT] {
        let client = Client::open(node.demo(), revision).await?;
        for (method, params, constant) in [
            ("tools/list", json!({}), "TOOL"),
            ("tools/call", json!({"name": "plain", "arguments": {}}), "RESULT"),
            ("resources/list", json!({}), "RESOURCE"),
        ] {
            let due = constant_of(&source, constant)?;
            let response = client.send(client.message(method, params)).await?;
            let text = response.text().await?;
            ensure!(text.contains(&due), "{method}\nsent    {due}\narrived {text}");
        }
    }
    Ok(())
}

// holds: TOOL-06, TOOL-13
#[tokio::test]
async fn schemas_mean_the_same_to_clients_of_every_revision() -> Result<()> {
    let source = std::fs::read_to_string(tools::root().join("tests/servers/plain.py"))?;
    let tool: Value = serde_json::from_str(&constant_of(&source, "TOOL")?)?;
    let node = Node::start(&plain())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let list = client.request("tools/list", json!({})).await?;
        ensure!(
            list["result"]["tools"][0]["inputSchema"] == tool["inputSchema"],
            "{revision}: {list}"
        );
        ensure!(
            list["result"]["tools"][0]["annotations"] == tool["annotations"],
            "{revision}: {list}"
        );
    }
    Ok(())
}

// holds: PAG-01, PAG-02, RES-05, PRM-01
#[tokio::test]
async fn lists_are_walked_page_by_page() -> Result<()> {
    let setup = Setup::fixture().env("EVERYTHING_PAGE_ITEMS_MAX", "2");
    let (paged, whole) = (Node::start(&setup)?, Node::start(&Setup::fixture())?);
    for revision in REVISIONS {
        let paged = Client::open(paged.demo(), revision).await?;
        let whole = Client::open(whole.demo(), revision).await?;
        for (method, key) in [
            ("tools/list", "tools"),
            ("resources/list", "resources"),
            ("resources/templates/list", "resourceTemplates"),
            ("prompts/list", "prompts"),
        ] {
            let all = result(whole.request(method, json!({})).await?)?;
            ensure!(all.get("nextCursor").is_none(), "{all}");
            let (mut items, mut params) = (Vec::new(), json!({}));
            loop {
                let page = result(paged.request(method, params).await?)?;
                let page_items = page[key].as_array().context("no items")?;
                ensure!(page_items.len() <= 2, "{page}");
                items.extend(page_items.iter().cloned());
                match page.get("nextCursor") {
                    Some(cursor) => params = json!({"cursor": cursor}),
                    None => break,
                }
            }
            ensure!(json!(items) == all[key], "{method}: {items:?}");
            let bogus = paged.request(method, json!({"cursor": "bogus"})).await?;
            check::is_error(&bogus, -32602, Id::Any).context(method)?;
        }
    }
    Ok(())
}

// holds: TOOL-01, RES-01, PRM-01, CMP-01, LOG-01
#[tokio::test]
async fn capabilities_are_those_of_the_server_as_the_revision_knows_them() -> Result<()> {
    let node = Node::start(&plain())?;
    for revision in REVISIONS.into_iter().chain(["2024-11-05"]) {
        let mut client = Client::new(node.demo(), revision);
        client.initialize(json!({})).await?;
        let capabilities = &client.welcome["capabilities"];
        ensure!(
            capabilities["tools"] == json!({"listChanged": true}),
            "{revision}: {capabilities}"
        );
        let resources = json!({"subscribe": true, "listChanged": true});
        ensure!(capabilities["resources"] == resources, "{revision}: {capabilities}");
        ensure!(
            capabilities["prompts"] == json!({"listChanged": true}),
            "{revision}: {capabilities}"
        );
        ensure!(capabilities.get("logging").is_none(), "{revision}: {capabilities}");
        // 2024-11-05 has completion, but no capability for it.
        ensure!(
            revision == "2024-11-05" || capabilities.get("completions").is_some(),
            "{revision}"
        );
    }
    Ok(())
}

// holds: TOOL-03, TOOL-04, TOOL-05, TOOL-10, RPC-13
#[tokio::test]
async fn tools_fail_as_tools_and_calls_as_calls() -> Result<()> {
    everywhere(async |client| {
        let unknown = client.request("tools/call", json!({"name": "no_such_tool"})).await?;
        check::is_error(&unknown, -32602, Id::Any)?;
        let failed = client.tool("test_error_handling", json!({})).await?;
        ensure!(failed["isError"] == true && failed["content"][0]["type"] == "text", "{failed}");
        let bad = client
            .request("tools/call", json!({"name": "rh_sleep", "arguments": {"ms": "x"}}))
            .await?;
        ensure!(bad["result"]["isError"] == true || bad["error"]["code"] == -32602, "{bad}");
        let bare = client.request("tools/call", json!({"name": "test_simple_text"})).await?;
        ensure!(bare["result"]["content"][0]["type"] == "text", "{bare}");
        let list = result(client.request("tools/list", json!({})).await?)?;
        let mut names = HashSet::new();
        for tool in list["tools"].as_array().context("no tools")? {
            let name = tool["name"].as_str().context("no name")?;
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            ensure!((1..=64).contains(&name.len()) && name.chars().all(plain), "{name}");
            ensure!(names.insert(name.to_owned()), "{name} is there twice");
        }
        Ok(())
    })
    .await
}

// holds: RES-02, RES-04, RES-05, RES-09
#[tokio::test]
async fn resources_are_read_and_missing_ones_are_said_to_be() -> Result<()> {
    everywhere(async |client| {
        let read = async |uri: &str| client.request("resources/read", json!({"uri": uri})).await;
        let text = read("test://static-text").await?;
        let contents = &text["result"]["contents"][0];
        ensure!(contents["uri"] == "test://static-text" && contents["text"].is_string(), "{text}");
        let binary = read("test://static-binary").await?;
        let blob = binary["result"]["contents"][0]["blob"].as_str().context("no blob")?;
        ensure!(blob.starts_with("iVBORw0KGgo"), "{blob}");
        let templated = read("test://template/123/data").await?;
        ensure!(templated.to_string().contains("Data for ID: 123"), "{templated}");
        let listed = client.request("resources/list", json!({})).await?;
        ensure!(!listed.to_string().contains("template"), "{listed}");
        let missing = read("test://nonexistent").await?;
        check::is_error(&missing, -32002, Id::Any)?;
        ensure!(missing["error"]["data"]["uri"] == "test://nonexistent", "{missing}");
        check::is_error(&read("no uri at all").await?, -32602, Id::Any)
    })
    .await
}

// holds: PRM-01, PRM-02, PRM-03, PRM-04, PRM-05
#[tokio::test]
async fn prompts_are_filled_in_exactly() -> Result<()> {
    everywhere(async |client| {
        let get = async |name: &str, arguments: Value| {
            client.request("prompts/get", json!({"name": name, "arguments": arguments})).await
        };
        let (first, second) = ("it's \"so\"", "1 < 2 & \u{e9}");
        let filled =
            get("test_prompt_with_arguments", json!({"arg1": first, "arg2": second})).await?;
        let message = &filled["result"]["messages"][0];
        let due = format!("Prompt with arguments: arg1='{first}', arg2='{second}'");
        ensure!(message["role"] == "user" && message["content"]["text"] == due, "{filled}");
        let image = get("test_prompt_with_image", json!({})).await?;
        let content = &image["result"]["messages"][0]["content"];
        ensure!(content["mimeType"] == "image/png" && content["data"].is_string(), "{image}");
        check::is_error(&get("no_such_prompt", json!({})).await?, -32602, Id::Any)?;
        let missing = get("test_prompt_with_arguments", json!({"arg1": "only"})).await?;
        check::is_error(&missing, -32602, Id::Any)
    })
    .await
}

// holds: CMP-02, CMP-04
#[tokio::test]
async fn completion_gives_a_hundred_values_at_most() -> Result<()> {
    everywhere(async |client| {
        let complete = async |of: Value, name: &str, value: &str| {
            let params = json!({"ref": of, "argument": {"name": name, "value": value}});
            client.request("completion/complete", params).await
        };
        let prompt = json!({"type": "ref/prompt", "name": "test_prompt_with_arguments"});
        let few = complete(prompt.clone(), "arg1", "par").await?;
        let values = &few["result"]["completion"]["values"];
        ensure!(*values == json!(["paris", "park", "party"]), "{few}");
        let many = complete(prompt, "arg2", "").await?;
        let completion = &many["result"]["completion"];
        ensure!(
            completion["values"].as_array().is_some_and(|values| values.len() == 100),
            "{many}"
        );
        ensure!(completion["hasMore"] == true, "{many}");
        let template = json!({"type": "ref/resource", "uri": "test://template/{id}/data"});
        let ids = complete(template, "id", "12").await?;
        ensure!(ids["result"]["completion"]["values"] == json!(["12", "123"]), "{ids}");
        let unknown = complete(json!({"type": "ref/prompt", "name": "nobody"}), "x", "").await?;
        check::is_error(&unknown, -32602, Id::Any)
    })
    .await
}

// holds: CMP-03
#[tokio::test]
async fn the_context_of_a_completion_reaches_the_server() -> Result<()> {
    let node = Node::start(&plain())?;
    for revision in ["2025-06-18", NEWEST] {
        let client = Client::open(node.demo(), revision).await?;
        let params = json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""},
            "context": {"arguments": {"owner": "ada"}}});
        let word = client.request("completion/complete", params).await?;
        let seen = word["result"]["completion"]["values"][0].as_str().context("no value")?;
        ensure!(seen == r#"{"arguments": {"owner": "ada"}}"#, "{seen}");
    }
    Ok(())
}

// holds: RES-08, TOOL-12
#[tokio::test]
async fn changes_of_every_list_are_announced() -> Result<()> {
    let node = Node::start(&plain())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let mut listening = client.listen().await?;
        client.tool("announce", json!({})).await?;
        for list in ["tools", "resources", "prompts"] {
            let (_, told) = listening.message().await?.context("the stream ended")?;
            ensure!(told["method"] == format!("notifications/{list}/list_changed"), "{told}");
        }
    }
    Ok(())
}

// holds: LOG-02, LOG-03
#[tokio::test]
async fn the_log_level_filters_from_then_on_and_only_here() -> Result<()> {
    everywhere(async |client| {
        let other = Client::open(client.url.clone(), &client.revision).await?;
        let logged = async |client: &Client| -> Result<usize> {
            let response = client.send(client.call("test_tool_with_logging", json!({}))).await?;
            if check::header(&response, "content-type")?.starts_with("application/json") {
                return Ok(0);
            }
            let blocks = tests::sse::Events::of(response)?.rest().await?;
            let messages = tests::mcp::messages(&blocks);
            Ok(messages
                .iter()
                .filter(|message| message["method"] == "notifications/message")
                .count())
        };
        ensure!(logged(client).await? == 3);
        let set = client.request("logging/setLevel", json!({"level": "error"})).await?;
        ensure!(set["result"] == json!({}), "{set}");
        ensure!(logged(client).await? == 0);
        ensure!(logged(&other).await? == 3, "the level of one session applies to another");
        client.request("logging/setLevel", json!({"level": "debug"})).await?;
        ensure!(logged(client).await? == 3);
        let loud = client.request("logging/setLevel", json!({"level": "loud"})).await?;
        check::is_error(&loud, -32602, Id::Any)
    })
    .await
}

// holds: ROOT-01, ROOT-02
#[tokio::test]
async fn roots_are_asked_of_clients_that_have_them_and_changes_reach_the_server() -> Result<()> {
    everywhere(async |client| {
        // This client has not declared roots.
        let undeclared = client.request("tools/call", json!({"name": "rh_roots"})).await?;
        ensure!(
            undeclared["result"]["isError"] == true || undeclared.get("error").is_some(),
            "{undeclared}"
        );
        let capabilities = json!({"roots": {"listChanged": true}});
        let client = Client::open_with(client.url.clone(), &client.revision, capabilities).await?;
        let mut stream = client.stream(client.call("rh_roots", json!({}))).await?;
        let (_, asked) = stream.message().await?.context("no question")?;
        ensure!(asked["method"] == "roots/list", "{asked}");
        let roots = json!({"roots": [{"uri": "file:///home/ada", "name": "home"}]});
        check::accepted(client.answer(&asked["id"], roots).await?).await?;
        let (_, word) = stream.message().await?.context("no response")?;
        ensure!(word.to_string().contains("file:///home/ada"), "{word}");
        Ok(())
    })
    .await?;
    let node = Node::start(&plain())?;
    let client =
        Client::open_with(node.demo(), NEWEST, json!({"roots": {"listChanged": true}})).await?;
    check::accepted(client.notify("notifications/roots/list_changed", json!({})).await?).await?;
    let until = tokio::time::Instant::now() + PATIENCE;
    while client.tool("roots_heard", json!({})).await?["content"][0]["text"] != "1" {
        ensure!(tokio::time::Instant::now() < until, "the server got no notification");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

// holds: SMP-01, SMP-05, ELI-03
#[tokio::test]
async fn whatever_the_client_answers_reaches_the_server() -> Result<()> {
    let capabilities = json!({"sampling": {}, "elicitation": {}});
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in ["2025-06-18", NEWEST, tests::mcp::DRAFT] {
            let client = Client::open_with(node.demo(), revision, capabilities.clone()).await?;
            let rejected =
                json!({"jsonrpc": "2.0", "error": {"code": -1, "message": "the user said no"}});
            let word = asked(&client, "test_sampling", json!({"prompt": "?"}), rejected).await?;
            let told = word.to_string();
            ensure!(word["result"]["isError"] == true || word.get("error").is_some(), "{told}");
            for action in ["decline", "cancel"] {
                let answer = json!({"jsonrpc": "2.0", "result": {"action": action}});
                let word =
                    asked(&client, "test_elicitation", json!({"message": "?"}), answer).await?;
                let text = word["result"]["content"][0]["text"].as_str().context("no text")?;
                ensure!(text.contains(action), "{text}");
            }
        }
    }
    Ok(())
}

// holds: ELI-01, RPC-12
#[tokio::test]
async fn clients_without_the_capability_are_not_asked() -> Result<()> {
    everywhere(async |client| {
        for (tool, arguments) in [
            ("test_sampling", json!({"prompt": "?"})),
            ("test_elicitation", json!({"message": "?"})),
        ] {
            let response = client.send(client.call(tool, arguments)).await?;
            let word = final_response(response).await?;
            ensure!(
                word["result"]["isError"] == true || word.get("error").is_some(),
                "{tool}: {word}"
            );
        }
        Ok(())
    })
    .await
}

// holds: ELI-05, ELI-06
#[tokio::test]
async fn users_are_sent_to_urls_and_called_back() -> Result<()> {
    let node = Node::start(&plain())?;
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    let client = Client::open_with(node.demo(), NEWEST, capabilities.clone()).await?;
    let other = Client::open_with(node.demo(), NEWEST, capabilities).await?;
    let mut elsewhere = other.listen().await?;
    let needs = client.request("tools/call", json!({"name": "needs_url", "arguments": {}})).await?;
    check::is_error(&needs, -32042, Id::Any)?;
    let elicitation = &needs["error"]["data"]["elicitations"][0];
    ensure!(elicitation["elicitationId"] == "e1" && elicitation["mode"] == "url", "{needs}");

    let mut listening = client.listen().await?;
    let mut stream = client.stream(client.call("asks_url", json!({}))).await?;
    let (_, question) = stream.message().await?.context("no question")?;
    ensure!(question["params"]["url"] == "https://example.com/e2", "{question}");
    check::accepted(client.answer(&question["id"], json!({"action": "accept"})).await?).await?;
    let blocks = stream.rest().await?;
    let mut heard = tests::mcp::messages(&blocks);
    if heard.len() == 1 {
        heard.extend(listening.message().await?.map(|(_, message)| message));
    }
    let complete = |message: &&Value| message["method"] == "notifications/elicitation/complete";
    let complete = heard.iter().find(complete).context("no callback came")?;
    ensure!(complete["params"]["elicitationId"] == "e2", "{complete}");
    ensure!(
        elsewhere.is_quiet_for(Duration::from_millis(300)).await?,
        "another client was notified"
    );
    Ok(())
}

// holds: ELI-01
#[tokio::test]
async fn a_client_without_urls_is_not_sent_to_one() -> Result<()> {
    let node = Node::start(&plain())?;
    for capabilities in
        [json!({}), json!({"elicitation": {}}), json!({"elicitation": {"form": {}}})]
    {
        let client = Client::open_with(node.demo(), NEWEST, capabilities).await?;
        let response = client.send(client.call("asks_url", json!({}))).await?;
        let word = final_response(response).await?;
        let text = word["result"]["content"][0]["text"].as_str().context("no text")?;
        ensure!(text.contains("code"), "the server got no error: {text}");
    }
    Ok(())
}

// holds: STD-10
#[tokio::test]
async fn a_configured_server_sees_the_environment_that_was_configured_and_no_shell() -> Result<()> {
    let program = tools::built("everything");
    let config = format!(
        "[tenants.acme]\nauth = \"open\"\n[tenants.acme.backends.it]\nkind = \"stdio\"\ncommand = {:?}\n\
         args = [\"$(touch never)\", \"; exit 1\"]\nenv = {{ GIVEN = \"yes\" }}\n",
        program.display().to_string()
    );
    let node = Node::start(&Setup::config(config).env("NODE_SECRET", "hush"))?;
    let client = Client::open(node.mcp("acme"), NEWEST).await?;
    let seen = client.tool("rh_env", json!({})).await?;
    let seen: HashSet<&str> =
        seen["content"][0]["text"].as_str().context("no text")?.lines().collect();
    ensure!(seen.contains("GIVEN"), "{seen:?}");
    ensure!(!seen.contains("NODE_SECRET") && !seen.contains("CARGO_MANIFEST_DIR"), "{seen:?}");
    ensure!(seen.iter().all(|name| !name.starts_with("ROUNDHOUSE__")), "{seen:?}");
    Ok(())
}

/// Runs a test with a client of each revision, against each kind of backend with the fixture.
async fn everywhere(scenario: impl AsyncFn(&Client) -> Result<()>) -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let http = Setup::in_front_of(&upstream.demo());
    let http_sse = Setup::in_front_of(&format!("{}/demo/sse", upstream.base));
    let kinds = [("native", Setup::demo()), ("stdio", Setup::fixture())];
    for (kind, setup) in kinds.into_iter().chain([("http", http), ("HTTP+SSE", http_sse)]) {
        let node = Node::start(&setup)?;
        for revision in REVISIONS {
            let client = Client::open(node.demo(), revision).await?;
            scenario(&client).await.with_context(|| format!("{revision}, {kind}"))?;
        }
    }
    Ok(())
}

/// The server whose answers have known bytes.
fn plain() -> Setup {
    let script = tools::root().join("tests/servers/plain.py").display().to_string();
    Setup::hosting([tools::python("py1").display().to_string(), script])
}

/// The text of a constant of that server.
fn constant_of(source: &str, name: &str) -> Result<String> {
    let (_, rest) = source.split_once(&format!("\n{name} = (\n")).context("no such constant")?;
    let (body, _) = rest.split_once("\n)").context("no end")?;
    let lines =
        body.lines().map(|line| line.trim().trim_start_matches('\'').trim_end_matches('\''));
    Ok(lines.collect::<String>().replace("\\\\", "\\"))
}

/// Calls a tool that asks once, answers, and gives the call's final response.
async fn asked(client: &Client, tool: &str, arguments: Value, mut answer: Value) -> Result<Value> {
    let mut stream = client.stream(client.call(tool, arguments)).await?;
    let (_, question) = stream.message().await?.context("no question")?;
    answer["id"] = question["id"].clone();
    check::accepted(client.send(answer).await?).await?;
    let (_, word) = stream.message().await?.context("no response")?;
    Ok(word)
}
