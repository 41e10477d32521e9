//! Offers several MCP servers of a tenant as one.
//!
//! [`Catalog`] is a [`Backend`](backends::Backend) made of others. Its link opens theirs, and a pure state
//! machine decides what goes where. Neither knows what a session is for.

mod approval;
mod backend;
mod charged;
mod child;
mod engine;
mod failure;
mod fingerprint;
mod in_flight;
mod list;
mod machine;
mod member;
mod metrics;
mod noted_differences;
mod paging;
mod pins;
mod pins_watch;
mod positions;
mod resources;
mod routes;
mod saved;
mod settings;
mod shared;
mod slots;
mod template;
mod waiting;

pub use backend::Catalog;
pub use fingerprint::Fingerprint;
pub use member::{LeftOut, MEMBERS_MAX, Members};
pub use metrics::register_all;
pub use pins::{
    Deviation, Difference, Observer, Part, Pin, Pinned, Pinning, ServerPins, TenantPins, WeakPins,
};
pub use settings::MemberSettings;
