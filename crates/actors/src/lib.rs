//! Keeps live sessions and performs their effects. The only crate with actix actors.

mod handle;
mod inflow;

pub use conversation::{Answer, Frame, Refusal};
pub use handle::{Handle, Opened, Settings, Visit};
pub use inflow::{Inflow, Told};
