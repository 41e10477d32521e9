//! Serves clients over HTTP and stdio.
//!
//! One file for each transport; the shared parts are beside them. The front does not know what a
//! session will answer. It sends requests through [`actors::Handle`] and turns the replies into
//! statuses, headers and bodies.

mod accept;
mod account_links;
mod admin;
mod admin_accounts;
mod admin_actions;
mod admin_address;
mod admin_api;
mod admin_audit;
mod admin_credentials;
mod admin_host;
mod admin_revocations;
mod admin_server;
mod admin_tenants;
mod audit_reading;
mod audited;
mod authentication;
mod bind;
mod body;
mod challenge;
mod chunks;
mod client_address;
mod closing_order;
mod collecting;
mod connection;
mod connections_by_address;
mod cors;
mod drain;
mod error;
mod exchange;
mod framing;
mod front;
mod front_request;
mod head_end;
mod head_timeout;
mod heads;
mod held_dispatch;
mod http_sse;
mod lapse;
mod limits;
mod metrics;
mod open_calls;
mod operations;
mod origin;
mod over_limit;
mod permissions;
mod pieces;
mod places;
mod read_ahead;
mod recent_rate;
mod record_performing;
mod refusal;
mod resource;
mod route;
mod second_poll;
mod served_session;
mod server;
mod server_span;
mod session_rate;
mod settings;
mod sse_body;
mod stdio;
mod stream_spans;
mod streamable_http;
mod tls;
mod transport;
mod unanswered;
mod unfinished;

pub use admin_address::AdminAddress;
pub use admin_credentials::{
    ADMIN_KEY_PREFIX, AdminCredentialSettings, AdminCredentials, Role, is_credential_name,
};
pub use admin_server::CONNECTIONS_MAX as ADMIN_CONNECTIONS_MAX;
pub use error::Error;
pub use exchange::Reporting;
pub use places::{connections_headroom, places_within};
pub use server::{Operators, Running, serve};
pub use settings::{AdminSettings, AdminToken, Settings};
pub use stdio::serve_stdio;
pub use tls::{
    CertificatePair, CertificatePairs, DEFAULT_PAIR, PairError, PairSettings, Tls, TlsSettings,
};
