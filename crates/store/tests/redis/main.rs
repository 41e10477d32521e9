//! Tests the store on real Redis servers: its guarantees, and failures of the servers.
//!
//! Needs `redis-server` 7.0 or newer in the path; `deploy/local/redis-test install` installs
//! Debian's. `ROUNDHOUSE_TEST_REDIS` names another program, such as `valkey-server`.
#![cfg(unix)]

mod clustered;
mod contract;
mod faults;
mod fixture;
mod model;
mod proxy;
mod sentinels;
mod server;
mod ticks;
mod tls;
