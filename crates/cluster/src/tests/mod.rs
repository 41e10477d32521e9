//! Tests of whole nodes in one process that share a store.

mod breaks;
mod deaths;
mod encryption;
mod leases;
mod links;
mod proxy;
mod support;
