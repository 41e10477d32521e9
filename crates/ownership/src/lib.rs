//! Who may act for a session, and what follows from that: pure decisions.
//!
//! Every decision of a cluster node about the ownership of sessions is here. These are: what an
//! owner writes next ([`machine`]), when another node may take a session over, which node is
//! dead, and what happens to a client's request when the owner of its session is lost. State and
//! time are inputs; decisions are outputs. There is no `async`, clock, socket or lock. `cluster`,
//! `store` and `actors` perform the decisions, and the simulator in `tests` drives the same code.

mod batch;
pub mod detector;
mod error;
mod evidence;
pub mod failover;
mod lease;
pub mod lease_lapse;
pub mod location;
pub mod machine;
#[cfg(feature = "mutants")]
mod mutants;
mod primary;
mod record;
mod reply_event;
pub mod retry;
pub mod revocation;
pub mod route;
mod rules;
mod session_request;
mod token;
pub mod tombstones;
pub mod validity;

pub use batch::{Appended, Batch, Claimed, Expected};
pub use error::Error;
pub use lease::{Lease, Marking, Presence, Renewed};
#[cfg(feature = "mutants")]
pub use mutants::MUTANTS;
pub use primary::{Primary, PrimaryId};
pub use record::{Digest, FORMER_MAX, Record, RecordStatus, State, StateBytes, StateExtension};
pub use reply_event::ReplyEvent;
pub use revocation::{Revocation, RevocationGeneration, RevocationList, RevocationTimes};
#[cfg(feature = "mutants")]
pub use rules::{Rule, RuleSet};
pub use session_request::SessionRequest;
pub use token::{Incarnation, Owner, Token};
