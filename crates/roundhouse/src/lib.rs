//! The program, and the library for embedding: reads settings, assembles, stops in order.
//!
//! [`Roundhouse`] collects tenants and settings. [`Node`] is one running node, which serves them
//! on its own threads, whatever runtime its caller uses. Only this crate reads files and the
//! environment.
//!
//! ```no_run
//! use roundhouse::native::{Call, Error, Handler, Info, json};
//!
//! struct Greeter;
//!
//! impl Handler for Greeter {
//!     fn info(&self) -> Info {
//!         Info::new("greeter", "1.0.0").capabilities(r#"{"tools":{}}"#)
//!     }
//!
//!     async fn call(&self, call: Call) -> Result<roundhouse::Bytes, Error> {
//!         Err(Error::method_not_found(call.method()))
//!     }
//! }
//!
//! # async fn example() -> Result<(), roundhouse::Error> {
//! let node = roundhouse::Roundhouse::new()
//!     .open_tenant("acme", roundhouse::native(Greeter))
//!     .listen("127.0.0.1:0")
//!     .start()
//!     .await?;
//! println!("{}", node.url("acme"));
//! # Ok(()) }
//! ```

mod added_admin_keys;
mod added_keys;
mod added_tenants;
mod admin_client;
mod advice;
mod asked_server;
mod assemble;
mod bounds;
mod certificates;
pub mod cli;
mod client_file;
mod demo;
mod descriptors;
mod embed;
mod files;
pub mod guard;
mod homes;
mod memory;
mod metrics;
mod node;
mod node_variables;
mod operator_commands;
mod peers;
mod pin_command;
mod pins;
mod plan;
pub mod private_environment;
pub mod program;
mod programs;
mod records;
mod reload;
mod revoke_command;
mod sandbox;
mod secrets;
pub mod settings;
mod settings_file;
mod shares;
mod signals;
mod started_servers;
mod unlink_command;
mod users;
mod watch;

pub use backends::{Backend, native};
pub use bytes::Bytes;
pub use embed::{Error, Roundhouse, native, rmcp};
pub use node::Node;
pub use settings::Settings;
pub use store::{Memory, Store};
