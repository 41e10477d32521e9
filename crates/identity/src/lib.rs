//! Checks the OAuth tokens that clients present: an OAuth 2.1 resource server (SEC-06 to SEC-13).
//!
//! [`Tokens`] verifies a token for one tenant: a JWT by the keys of its issuer, any other token by
//! introspection. [`TokenCache`] keeps what was verified. This crate reads no request of a client
//! and never logs a token. It connects to issuers only.

mod cache;
mod claims;
mod discovery;
mod http;
mod introspection;
mod issuer;
mod jwt;
mod key_set;
mod metrics;
mod problem;
mod provider;
mod refresh;
mod tokens;

pub use cache::{TokenCache, TokenDigest};
pub use claims::Identity;
pub use discovery::server_metadata_url;
pub use metrics::register_metrics;
pub use problem::TokenProblem;
pub use tokens::Tokens;
