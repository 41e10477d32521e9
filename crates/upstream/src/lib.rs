//! Speaks MCP over HTTP with a server, as its client.
//!
//! [`Machine`] is one session with such a server, as a pure state machine: messages and events of
//! exchanges in, effects out. [`Client`] performs the exchanges: it connects only to permitted addresses,
//! and bounds each body and each wait. Neither knows a session of Roundhouse, nor what a message is for.

mod breaker;
mod charge;
mod client;
mod connector;
mod content;
mod credential;
mod exchange;
mod failure;
mod left_out;
mod machine;
mod metrics;
mod networks;
mod reading;
mod sending;
mod sent;
mod settings;
mod tracked;
mod url;

pub use self::client::{Client, IDLE_MAX};
pub use self::credential::{
    ClientAuth, CredentialProblem, CredentialSetting, CredentialSettings, Grant, Linking,
    OauthCode, PendingLink, Returned, Secret, SignInSettings, Step, User, UserKey, Vault,
    VaultUnavailable, random, tag,
};
pub use self::exchange::{Exchange, ExchangeEvent, HeaderText, SentEvent, Verb};
pub use self::failure::Failure;
pub use self::machine::{Effect, ExchangeId, Machine};
pub use self::metrics::register_all;

pub use self::sent::{Sent, WhenSent};
pub use self::settings::{Headers, HttpSettings, Problem};
pub use self::url::{Url, UrlProblem};
