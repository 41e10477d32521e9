//! An echo on the `Handler` trait: raw JSON in, raw JSON out.
//!
//! `cargo run --example handler` serves it at http://127.0.0.1:8080/acme/mcp.

use roundhouse::native::{Call, Error, Handler, Info, json};
use roundhouse::{Bytes, Roundhouse};
use serde_json::{Value, json};

struct Echo;

impl Handler for Echo {
    fn info(&self) -> Info {
        Info::new("echo", "1.0.0").capabilities(r#"{"tools":{}}"#)
    }

    async fn call(&self, call: Call) -> Result<Bytes, Error> {
        match call.method().as_str() {
            "tools/list" => {
                let schema =
                    json!({ "type": "object", "properties": { "text": { "type": "string" } } });
                json(&json!({ "tools": [{ "name": "echo", "inputSchema": schema }] }))
            }
            "tools/call" => {
                let text = call.params_as::<Value>()?["arguments"]["text"].take();
                json(&json!({ "content": [{ "type": "text", "text": text }] }))
            }
            _ => Err(Error::method_not_found(call.method())),
        }
    }
}

/// The node; the tests start it too.
pub(crate) fn node() -> Roundhouse {
    Roundhouse::new().open_tenant("acme", roundhouse::native(Echo))
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "the tests start the node themselves")]
async fn main() -> Result<(), roundhouse::Error> {
    node().listen("127.0.0.1:8080").serve().await
}
