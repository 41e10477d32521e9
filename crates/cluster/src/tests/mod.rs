//! Tests of whole nodes in one process that share a store.

mod breaks;
mod deaths;
mod encryption;
mod leases;
mod links;
#[path = "../../../../tests/src/ports.rs"]
mod ports;
mod proxy;
mod support;
