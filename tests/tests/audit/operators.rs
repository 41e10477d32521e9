//! What the audit log has of operators: what they did, and what they were refused.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tempfile::NamedTempFile;
use tests::audit_log::Log;
use tests::mcp::Client;
use tests::redis::Redis;
use tests::{Node, Setup, check};
use tokio::time::sleep;

use super::{NEWEST, WITH_BATCHES, digest, ruled};

/// The credential of the operator.
const TOKEN: &str = "a-token-for-operators";

/// A node with this setup, and the file of the operator's credential, which is to stay.
fn operated(log: &Log, setup: Setup) -> Result<(Node, NamedTempFile)> {
    let credential = NamedTempFile::new()?;
    std::fs::write(&credential, TOKEN)?;
    let setup = log.of(setup).with("admin.token_file", credential.path().display());
    Ok((Node::start(&setup)?, credential))
}

#[tokio::test]
async fn what_operators_do_and_may_not_do_is_recorded() -> Result<()> {
    let log = Log::new()?;
    let (_, _, text) = ruled();
    let (node, _credential) = operated(&log, Setup::config(text))?;
    let tenants = reqwest::Client::new().get(format!("{}/v1/tenants", node.admin));
    let list = |token| tenants.try_clone().context("a body").map(|ask| ask.bearer_auth(token));
    check::status(&list(TOKEN)?.send().await?, 200)?;
    check::status(&list("another-token")?.send().await?, 401)?;
    // What operators read is one record, which is there before the answer.
    let read = log.records()?.into_iter().filter(|record| record["kind"] == "admin");
    let [read] = &read.collect::<Vec<_>>()[..] else { bail!("{:?}", log.records()?) };
    ensure!(read["action"] == "list tenants" && read["target"] == "cluster", "{read}");
    ensure!(read["by"] == "admin.token_file" && read["outcome"] == "listed", "{read}");
    // What they do is two: before it and behind it.
    let drain = reqwest::Client::new().post(format!("{}/drain?secs=0", node.admin));
    drain.bearer_auth(TOKEN).send().await?.error_for_status()?;
    let done = log.find(2, |record| record["action"] == "drain").await?;
    ensure!(done[0].get("outcome").is_none() && done[1].get("outcome").is_some(), "{done:?}");
    ensure!(done.iter().all(|record| record["kind"] == "admin"), "{done:?}");
    let refused = log.one(|record| record["kind"] == "sign_in_failed").await?;
    ensure!(refused["reason"] == "no valid token", "{refused}");
    ensure!(refused["action"] == "list tenants", "{refused}");
    // What names nothing is refused with a record too.
    let wrong = reqwest::Client::new().post(format!("{}/revocations?tenat=demo", node.admin));
    check::status(&wrong.bearer_auth(TOKEN).send().await?, 400)?;
    let refused = log.one(|record| record["kind"] == "refused").await?;
    ensure!(refused["reason"] == "malformed" && refused["action"] == "revoke", "{refused}");
    ensure!(refused["by"] == "admin.token_file", "{refused}");
    Ok(())
}

#[tokio::test]
async fn an_operator_without_a_credential_in_the_settings_is_refused_with_a_record() -> Result<()> {
    let log = Log::new()?;
    let node = Node::start(&log.of(Setup::demo()))?;
    let drain = reqwest::Client::new().post(format!("{}/drain", node.admin));
    check::status(&drain.send().await?, 403)?;
    let refused = log.one(|record| record["kind"] == "sign_in_failed").await?;
    ensure!(refused["reason"] == "off" && refused["action"] == "drain", "{refused}");
    Ok(())
}

#[tokio::test]
async fn the_end_of_a_session_by_an_operator_names_its_tenant_and_the_session() -> Result<()> {
    let log = Log::new()?;
    let (node, _credential) = operated(&log, Setup::demo())?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let session = client.session.clone().context("no session")?;
    let url = format!("{}/v1/sessions/{session}", node.admin);
    let end = reqwest::Client::new().delete(url).bearer_auth(TOKEN);
    check::status(&end.send().await?, 200)?;
    let records = log.find(2, |record| record["action"] == "end session").await?;
    ensure!(records[0].get("outcome").is_none() && records[0].get("session").is_none());
    let end = &records[1];
    ensure!(end["outcome"] == "ended" && end["tenant"] == "demo", "{end}");
    ensure!(end["session"] == digest(&session) && end["target"] == digest(&session), "{end}");
    Ok(())
}

/// A client without a credential opens so many connections that the one of an operator is closed.
#[tokio::test]
async fn what_an_operator_has_asked_for_is_recorded_without_its_connection() -> Result<()> {
    let log = Log::new()?;
    let (_, writer, text) = ruled();
    let redis = Redis::start()?;
    let setup = Setup::config(text).with("store.url", redis.url());
    let (node, _credential) = operated(&log, setup)?;
    let client = Client::new(node.demo(), NEWEST).with_key(&writer).opened(json!({})).await?;
    let url = format!("{}/revocations?tenant=demo&subject=ada", node.admin);
    let address = node.admin.trim_start_matches("http://").to_owned();
    // The revocation waits for the store.
    redis.freeze()?;
    let order = reqwest::Client::new().post(url).bearer_auth(TOKEN).send();
    let flood = async {
        sleep(Duration::from_millis(100)).await;
        let mut open = Vec::new();
        for _ in 0..140 {
            open.push(tokio::net::TcpStream::connect(&address).await?);
        }
        anyhow::Ok(open)
    };
    let (order, flood) = tokio::join!(order, flood);
    redis.thaw()?;
    ensure!(order.is_err(), "the connection was not closed");
    drop(flood?);
    let record = log.one(|record| record["kind"] == "revoked").await?;
    ensure!(record["subject"] == "ada" && record["principal"] == "key", "{record}");
    node.logs("operator action").await?;
    check::status(&client.send(client.call("rh_echo", json!({}))).await?, 401)
}

#[tokio::test]
async fn a_revocation_is_a_record_that_names_the_client() -> Result<()> {
    let log = Log::new()?;
    let (_, writer, text) = ruled();
    let (node, _credential) = operated(&log, Setup::config(text))?;
    let client = Client::new(node.demo(), WITH_BATCHES).with_key(&writer).opened(json!({})).await?;
    let url = format!("{}/revocations?tenant=demo&subject=ada", node.admin);
    let order = reqwest::Client::new().post(url).bearer_auth(TOKEN);
    check::status(&order.send().await?, 200)?;
    let record = log.one(|record| record["kind"] == "revoked").await?;
    ensure!(record["subject"] == "ada" && record["tenant"] == "demo", "{record}");
    ensure!(record["by"] == "admin.token_file" && record["action"] == "revoke", "{record}");
    ensure!(record["outcome"] == "200" && record["principal"] == "key", "{record}");
    check::status(&client.send(client.call("rh_echo", json!({}))).await?, 401)?;
    let refused = log.one(|record| record["kind"] == "sign_in_failed").await?;
    ensure!(refused["reason"] == "revoked" && refused["subject"] == "ada", "{refused}");
    // One record of the action, and one line, which does not name the client.
    log.one(|record| record["action"] == "revoke").await?;
    let output = node.output();
    // The line of the session that ended is about another fact.
    let is_of_action = |line: &&str| line.contains("revoke") && !line.contains("session ended");
    let lines: Vec<_> = output.lines().filter(is_of_action).collect();
    let [line] = lines[..] else { bail!("{lines:#?}") };
    ensure!(line.contains("operator action") && line.contains("stored=true"), "{line}");
    ensure!(!line.contains("ada"), "{line}");
    Ok(())
}
