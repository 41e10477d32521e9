//! A tenant's server whose behaviour the name of the called tool selects.

use std::sync::Arc;
use std::time::Duration;

use backends::native::{Call, Error, Handler, Info, NativeBackend};
use backends::{Backend, Backends};
use bytes::Bytes;
use serde::Deserialize;

struct Parrot;

#[derive(Deserialize)]
struct Params {
    name: String,
    #[serde(default)]
    arguments: Arguments,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    text: String,
    millis: u64,
    bytes: usize,
}

impl Handler for Parrot {
    fn info(&self) -> Info {
        Info::new("parrot", "1.0.0").capabilities(r#"{"tools":{},"logging":{}}"#)
    }

    async fn call(&self, call: Call) -> Result<Bytes, Error> {
        if call.method().as_str() != "tools/call" {
            return Err(Error::method_not_found(call.method()));
        }
        let Params { name, arguments } = call.params_as()?;
        let text = match name.as_str() {
            "echo" => arguments.text,
            "big" => "x".repeat(arguments.bytes),
            "slow" => {
                tokio::time::sleep(Duration::from_millis(arguments.millis)).await;
                "slept".to_owned()
            }
            "steps" => {
                for step in 1..=3_i32 {
                    let _ = call.peer().progress(step.into(), Some(3.0), None).await;
                }
                "stepped".to_owned()
            }
            "fail" => {
                let result = r#"{"content":[{"type":"text","text":"failed"}],"isError":true}"#;
                return Ok(Bytes::from_static(result.as_bytes()));
            }
            "never" => std::future::pending().await,
            _ => return Err(Error::invalid_params("no such tool")),
        };
        let result = serde_json::json!({ "content": [{ "type": "text", "text": text }] });
        Ok(result.to_string().into())
    }
}

/// The parrot as the server of the tenants `demo` and `picky`.
pub(crate) fn backends() -> Backends {
    let parrot: Arc<dyn Backend> = Arc::new(NativeBackend::new(Parrot));
    Backends::new(["demo", "picky"].map(|tenant| (tenant.into(), Arc::clone(&parrot))))
}
