//! The connection to one primary, which is reopened whenever it breaks.
//!
//! A task opens the connection. Senders wait for it until their deadlines. Nothing is repeated
//! here: a command that was sent on a connection that broke has an unknown outcome.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::address::Address;
use super::dial::{Dialer, redis_error, timeout_error};
use super::settings::Settings;
use crate::{PrimaryId, metrics};

/// How long a sender waits for a connection before it looks up the primary again.
const PATIENCE: Duration = Duration::from_millis(100);

/// The bytes of long commands that are on their way to a server: so many units of so many bytes.
const TURN_UNITS: u32 = 16;
const TURN_UNIT_BYTES: usize = 64 << 10;

/// How the address of the primary is found.
#[derive(Clone)]
pub(super) enum Route {
    /// It is always this one.
    Fixed(Address),
    /// The Sentinels report the address of the master of this name.
    Sentinels { sentinels: Vec<Address>, master: String, dialer: Dialer },
}

/// The connection to one primary.
pub(super) struct RedisConnection {
    state: watch::Receiver<ConnectionState>,
    /// The number of the newest connection that is known to be broken.
    broken: watch::Sender<u64>,
    /// Bounds the writes in flight to this server; further ones wait for a permit.
    permits: Semaphore,
    /// The units of [`TURN_UNIT_BYTES`] that further long commands may have on their way.
    turns: Semaphore,
    since: Instant,
    _task: Task,
}

#[derive(Clone)]
enum ConnectionState {
    Open(Arc<OpenConnection>),
    Down(Arc<str>),
}

/// One open connection, which may have broken since.
pub(super) struct OpenConnection {
    connection: MultiplexedConnection,
    /// The server's address.
    pub(super) address: Address,
    /// The server's primary id at the time of the connect.
    pub(super) primary: PrimaryId,
    number: u64,
}

impl RedisConnection {
    pub(super) fn new(route: Route, dialer: Dialer, settings: &Settings, runtime: &Handle) -> Self {
        let (up, state) =
            watch::channel(ConnectionState::Down("not connected to redis yet".into()));
        let (broken, watched) = watch::channel(0);
        let wait = (settings.reconnect_ms_min, settings.reconnect_ms_max);
        let task = runtime.spawn(keep_connected(route, dialer, wait, up, watched));
        let permits = Semaphore::new(settings.in_flight_max);
        let (turns, since) = (Semaphore::new(TURN_UNITS as usize), Instant::now());
        Self { state, broken, permits, turns, since, _task: Task(task.abort_handle()) }
    }

    /// Whether it was created less than a minute ago.
    pub(super) fn is_young(&self) -> bool {
        self.since.elapsed() < Duration::from_secs(60)
    }

    /// Whether a connection is open that is not known to be broken.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), ConnectionState::Open(_))
    }

    /// Returns the open connection, and waits for one if there is none.
    pub(super) async fn wait_until_open(
        &self,
        deadline: Instant,
    ) -> io::Result<Arc<OpenConnection>> {
        let deadline = deadline.min(Instant::now() + PATIENCE);
        let mut state = self.state.clone();
        let waiting = state.wait_for(|state| matches!(state, ConnectionState::Open(_)));
        let answer = timeout_at(deadline, waiting).await.map(|state| state.map(|s| s.clone()));
        match answer {
            Ok(Ok(ConnectionState::Open(up))) => Ok(up),
            Ok(_) => Err(io::Error::other("the runtime of the redis connections has stopped")),
            Err(_) => match &*self.state.borrow() {
                ConnectionState::Open(up) => Ok(Arc::clone(up)),
                ConnectionState::Down(why) => {
                    Err(io::Error::new(io::ErrorKind::NotConnected, &**why))
                }
            },
        }
    }

    /// Waits until long commands with so many bytes may be sent: together at most 1 MiB are on their way, or
    /// one command. They get their turns in order. `None` for no bytes, which wait for nothing.
    pub(super) async fn turn(
        &self,
        long_bytes: usize,
        deadline: Instant,
    ) -> io::Result<Option<SemaphorePermit<'_>>> {
        if long_bytes == 0 {
            return Ok(None);
        }
        let units = u32::try_from(long_bytes.div_ceil(TURN_UNIT_BYTES)).unwrap_or(TURN_UNITS);
        let turn = self.turns.acquire_many(units.min(TURN_UNITS));
        match timeout_at(deadline, turn).await {
            Ok(Ok(turn)) => Ok(Some(turn)),
            Ok(Err(_)) | Err(_) => {
                let why = "redis has not taken other long commands in time";
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }

    /// Writes the commands and reads their answers. After an error the outcome of the commands is
    /// unknown.
    pub(super) async fn send(
        &self,
        up: &OpenConnection,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> io::Result<Vec<Value>> {
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return Err(timeout_error(&up.address));
        };
        let mut connection = up.connection.clone();
        let start = Instant::now();
        let sending = connection.send_packed_commands(pipeline, 0, pipeline.len());
        let error = match timeout_at(deadline, sending).await {
            Ok(Ok(values)) if values.len() == pipeline.len() => {
                metrics::observe_round_trip(start.elapsed());
                return Ok(values);
            }
            Ok(Ok(_)) => {
                let why = format!("redis at {} sent fewer answers than commands", up.address);
                io::Error::other(why)
            }
            Ok(Err(error)) => redis_error(&up.address, &error),
            // A retry on another connection is harmless if the server is only slow. On a dead
            // connection, every sender would wait until the kernel detects the failure.
            Err(_) => timeout_error(&up.address),
        };
        self.drop_connection(up, &error.to_string());
        Err(error)
    }

    /// Reopens the connection. Callers that wait for answers on the old one may still get them.
    pub(super) fn drop_connection(&self, up: &OpenConnection, why: &str) {
        let is_first = self.broken.send_if_modified(|broken| {
            let newer = up.number > *broken;
            *broken = up.number.max(*broken);
            newer
        });
        if is_first {
            metrics::CONNECTIONS_BROKEN.inc();
            tracing::warn!(redis = %up.address, why, "redis connection lost; reconnecting");
        }
    }
}

/// Opens a connection, and opens another one whenever it breaks.
async fn keep_connected(
    route: Route,
    dialer: Dialer,
    (wait_min, wait_max): (u64, u64),
    state: watch::Sender<ConnectionState>,
    mut broken: watch::Receiver<u64>,
) {
    let (mut number, mut failures, mut is_logged) = (0, 0, false);
    loop {
        match connect(&route, &dialer).await {
            Ok((address, connection, primary)) => {
                tracing::info!(redis = %address, ?primary, "connected to redis");
                let _counted = Counted::new();
                is_logged = false;
                number += 1;
                let up = OpenConnection { connection, address, primary, number };
                state.send_replace(ConnectionState::Open(Arc::new(up)));
                let since = Instant::now();
                if broken.wait_for(|broken| *broken >= number).await.is_err() {
                    return;
                }
                state.send_replace(ConnectionState::Down("the connection to redis broke".into()));
                // A connection that broke at once counts as a failed attempt.
                if since.elapsed() > Duration::from_millis(wait_max) {
                    failures = 0;
                }
            }
            Err(error) => {
                metrics::CONNECT_FAILURES.inc();
                // Logged once an outage, not at each attempt.
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(%error, "cannot connect to redis; retrying until it succeeds");
                }
                state.send_replace(ConnectionState::Down(error.to_string().into()));
            }
        }
        if failures > 0 {
            sleep(backoff(failures, wait_min, wait_max)).await;
        }
        failures += 1;
    }
}

async fn connect(
    route: &Route,
    dialer: &Dialer,
) -> io::Result<(Address, MultiplexedConnection, PrimaryId)> {
    let address = match route {
        Route::Fixed(address) => address.clone(),
        Route::Sentinels { sentinels, master, dialer } => {
            super::sentinel::find_master(sentinels, master, dialer).await?
        }
    };
    let (connection, primary) = dialer.dial_primary(&address).await?;
    Ok((address, connection, primary))
}

/// The pause after so many failures. It doubles from `min` to `max` milliseconds. Up to half of
/// it is left out at random, so that nodes do not reconnect at the same time.
pub(super) fn backoff(failures: u32, min: u64, max: u64) -> Duration {
    let whole = min.saturating_mul(1 << (failures.saturating_sub(1)).min(20)).min(max).max(1);
    let random = RandomState::new().hash_one(failures) % (whole / 2 + 1);
    Duration::from_millis(whole - random)
}

/// Counts an open connection in metrics until it is dropped.
struct Counted;

impl Counted {
    fn new() -> Self {
        metrics::CONNECTIONS.inc();
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::CONNECTIONS.dec();
    }
}

/// A task that is aborted when this is dropped.
pub(super) struct Task(pub(super) AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_never_zero() {
        for failures in 1..100 {
            let wait = backoff(failures, 20, 1_000);
            let whole = (20 << (failures - 1).min(20)).min(1_000);
            assert!(wait <= Duration::from_millis(whole), "{failures}: {wait:?}");
            assert!(wait >= Duration::from_millis(whole / 2), "{failures}: {wait:?}");
        }
    }
}
