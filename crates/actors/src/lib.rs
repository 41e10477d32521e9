//! Runs sessions and performs their effects. The only crate with actix actors.
//!
//! [`Handle`] creates sessions, sends them the requests of clients, and returns a [`ReplyStream`]
//! for each request. A session is one actor that holds the state machine of `conversation`, the
//! link to the tenant's server and the log writer.
//!
//! In a cluster a session may be on another node. Its requests are then forwarded there, without a
//! difference for the user of the handle. A node on its own is a cluster of one.

mod arbiters;
mod caller;
mod care;
mod clock;
mod handle;
mod handshake_summary;
mod held;
mod lifetimes;
mod limits;
mod link_seal;
mod metrics;
mod node;
mod node_context;
mod overview;
mod principal_digest;
mod registry;
mod relief;
mod reply;
mod reply_stream;
mod revocations;
mod routing;
mod session;
mod session_bytes;
mod session_durations;
mod session_summary;
mod sessions_here;
mod settings;
mod short_id;
mod sleeping;
mod sleeping_bytes;
mod spans;
mod takeover;
mod tenants_here;
mod timer;
mod tombstones;
mod unconfirmed;
mod vault;

pub use backends::http::{
    CredentialProblem, Linking, PendingLink, Returned, Step, UserKey, Vault, random, tag,
};
pub use caller::Caller;
pub use care::Care;
pub use cluster::{Revocations, RevocationsOfThread};
pub use conversation::{Answer, Definition, Frame, Refusal, Rerun};
pub use handle::{Handle, NodeParts};
pub use handshake_summary::HandshakeSummary;
pub use limits::{CountEntry, Counted, NodeLimits, PendingSession, RateEntry, Taken};
pub use overview::{EndProblem, Ended, Listing, NodeSummary, Overview, Unasked};
pub use ownership::revocation::{REVOCATIONS_MAX, TENANT_REVOCATIONS_MAX};
pub use ownership::{ReplyEvent, Revocation, RevocationTimes};
pub use reply_stream::{Opened, ReplyStream};
pub use revocations::{RevocationOrder, RevocationRefused, RevocationResult};
pub use routing::PAYLOAD_VERSIONS;
pub use session_bytes::SessionBytes;
pub use session_summary::{Activity, SessionQuery, SessionSummary};
pub use sessions_here::PAGE_MAX;
pub use settings::Settings;
pub use short_id::{ShortId, Target};
pub use sleeping::{SleepingPage, SleepingQuery, SleepingSession};
pub use spans::{begin_notification_span, begin_request_span};
pub use store::ScanCursor;
pub use tenants_here::{Figure, ShownSettings, TenantFigures};
