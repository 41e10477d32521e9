//! One backend of several changes.

use super::*;

/// A program whose tool `count` answers this version, and how often the process was asked.
fn counting(backend: &str, version: &str) -> String {
    let server = format!(
        "import sys, json\n\
         count = 0\n\
         for line in sys.stdin:\n    \
             message = json.loads(line)\n    \
             if 'id' not in message: continue\n    \
             result = {{}}\n    \
             if message['method'] == 'initialize':\n        \
                 info = {{'name': 'counting', 'version': '1'}}\n        \
                 result = {{'protocolVersion': '2025-11-25', 'capabilities': {{'tools': {{}}}}, 'serverInfo': info}}\n    \
             if message['method'] == 'tools/list':\n        \
                 result = {{'tools': [{{'name': 'count', 'inputSchema': {{'type': 'object'}}}}]}}\n    \
             if message['method'] == 'tools/call':\n        \
                 count += 1\n        \
                 result = {{'content': [{{'type': 'text', 'text': f'{version} {{count}}'}}]}}\n    \
             print(json.dumps({{'jsonrpc': '2.0', 'id': message['id'], 'result': result}}), flush=True)\n"
    );
    let server = json!(server);
    format!(
        "[tenants.both.backends.{backend}]\nkind = 'stdio'\ncommand = 'python3'\nargs = ['-c', {server}]\n"
    )
}

async fn count(client: &Client, tool: &str) -> Result<String> {
    let answer = client.request("tools/call", json!({ "name": tool, "arguments": {} })).await?;
    let text = answer["result"]["content"][0]["text"].as_str();
    Ok(text.with_context(|| format!("{answer}"))?.to_owned())
}

#[tokio::test]
async fn the_other_servers_of_a_tenant_stay_when_one_is_changed() -> Result<()> {
    let settings = |version: &str| {
        let changed = counting("changed", version) + "stateless = true\n";
        format!("[tenants.both]\nauth = 'open'\n{}{changed}", counting("kept", "one"))
    };
    let node = Node::start(&Setup::config(settings("one")).with("node.reload_secs", 1))?;
    let client = Client::open(node.mcp("both"), NEWEST).await?;
    ensure!(count(&client, "kept__count").await? == "one 1");
    ensure!(count(&client, "changed__count").await? == "one 1");

    write(&node, &settings("two"))?;
    // It keeps nothing between two calls, so the session gets the new one as soon as it is idle.
    let changed = async {
        while count(&client, "changed__count").await? != "two 1" {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let within = timeout(APPLIED, changed).await;
    within.with_context(|| format!("the former server goes on:\n{}", node.output()))??;
    ensure!(count(&client, "kept__count").await? == "one 2", "the process is another one");
    let later = Client::open(node.mcp("both"), NEWEST).await?;
    ensure!(count(&later, "changed__count").await? == "two 1");
    Ok(())
}
