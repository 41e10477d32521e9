//! Nodes inside an embedding program.

use crate::client::Client;
use anyhow::Result;
use roundhouse::native::{Call, Error, Handler, Info};
use roundhouse::settings::Environment;
use roundhouse::{Bytes, Roundhouse, Settings};
use serde_json::json;

/// A server that answers every request with its name.
struct Named(&'static str);

impl Handler for Named {
    fn info(&self) -> Info {
        Info::new(self.0, "1").capabilities(r#"{"tools":{}}"#)
    }

    async fn call(&self, _call: Call) -> Result<Bytes, Error> {
        Ok(Bytes::from(format!(r#"{{"tools":[],"from":"{}"}}"#, self.0)))
    }
}

fn named(tenant: &'static str) -> Roundhouse {
    Roundhouse::new().open_tenant(tenant, roundhouse::native(Named(tenant))).on_free_ports()
}

#[tokio::test]
async fn nodes_of_one_process_serve_only_their_own_tenants() -> Result<()> {
    let (one, other) = (named("one").start().await?, named("other").start().await?);
    assert_ne!(one.address(), other.address());
    let client = Client::initialize(&one.url("one")).await?;
    assert_eq!(client.call("tools/list", json!({})).await?["from"], "one");
    assert!(Client::initialize(&one.url("other")).await.is_err());
    one.stop().await;
    Client::initialize(&other.url("other")).await?;
    other.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_session_of_one_tenant_is_unknown_to_the_next() -> Result<()> {
    let node = named("one").open_tenant("two", roundhouse::native(Named("two"))).start().await?;
    assert_eq!(node.tenants(), ["one", "two"]);
    let client = Client::initialize(&node.url("one")).await?;
    let stolen = client.at(&node.url("two")).call("tools/list", json!({})).await;
    assert!(stolen.unwrap_err().to_string().starts_with("404"));
    assert_eq!(client.call("tools/list", json!({})).await?["from"], "one");
    node.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_dropped_node_stops_by_itself() -> Result<()> {
    let node = named("one").start().await?;
    let url = node.url("one");
    Client::initialize(&url).await?;
    drop(node);
    while reqwest::get(&url).await.is_ok() {
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[tokio::test]
async fn settings_may_name_a_handler_that_the_program_brings() -> Result<()> {
    let toml = tempfile::NamedTempFile::new()?;
    let text = "tenants.acme.auth = 'open'
                tenants.acme.backends.main = { kind = 'native', name = 'ours' }";
    std::fs::write(toml.path(), text)?;
    let settings = Settings::read(Some(toml.path()), &Environment::of([]))?;
    let roundhouse = Roundhouse::from_settings(settings);
    let roundhouse = roundhouse.handler("ours", roundhouse::native(Named("ours")));
    let node = roundhouse.on_free_ports().start().await?;
    assert_eq!(Client::initialize(&node.url("acme")).await?.server["name"], "ours");
    node.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_node_that_cannot_start_names_the_reason() {
    let refused = named("Not A Name").start().await.unwrap_err().to_string();
    assert!(refused.contains("Not A Name"), "{refused}");
    let refused = named("one").listen("localhost").start().await.unwrap_err().to_string();
    assert!(refused.contains("`listen` is \"localhost\""), "{refused}");
    let refused = Roundhouse::new().start().await.unwrap_err().to_string();
    assert!(refused.contains("no tenant"), "{refused}");
}
