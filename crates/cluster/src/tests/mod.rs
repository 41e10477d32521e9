//! Tests of whole nodes in one process that share a store.

mod breaks;
mod deaths;
mod leases;
mod links;
mod proxy;
mod support;
