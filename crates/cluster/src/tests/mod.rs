//! Whole nodes in one process, with a store between them.

mod between;
mod breaks;
mod deaths;
mod leases;
mod links;
mod support;
