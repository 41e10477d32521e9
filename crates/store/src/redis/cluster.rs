//! The map from slots to the primaries of a Redis Cluster.
//!
//! A task fetches the map at the start, and again after a command was redirected or got no
//! answer. The task pauses between two fetches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::address::Address;
use super::answer::{bytes, text};
use super::connection::{RedisConnection, Route, Task};
use super::dial::Dialer;
use super::keys::SLOTS;
use super::settings::Settings;

/// The pause between two fetches of the map.
const REST: Duration = Duration::from_millis(100);

/// Maximum number of servers that the map is requested from at once.
const ASKED_MAX: usize = 16;

/// Maximum number of primaries in a map: more than Redis recommends for a cluster.
const PRIMARIES_MAX: usize = 1_024;

/// Ranges of slots: first and last of each.
pub(super) type Ranges = Vec<(u16, u16)>;

/// The primaries of a Redis Cluster, with the slots of each.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    _task: Task,
}

struct Shared {
    seeds: Vec<Address>,
    dialer: Dialer,
    settings: Settings,
    runtime: Handle,
    map: watch::Sender<Arc<Map>>,
    wanted: Notify,
}

/// Which primary keeps which slot.
#[derive(Default)]
struct Map {
    /// First slot, last slot and primary of each range, in ascending order.
    ranges: Vec<(u16, u16, Address)>,
    connections: HashMap<Address, Arc<RedisConnection>>,
}

impl Map {
    fn address_of(&self, slot: u16) -> Option<&Address> {
        let range = self.ranges.partition_point(|(_, last, _)| *last < slot);
        let (first, _, address) = self.ranges.get(range)?;
        (*first <= slot).then_some(address)
    }
}

impl Cluster {
    pub(super) fn new(
        seeds: Vec<Address>,
        dialer: Dialer,
        settings: &Settings,
        runtime: &Handle,
    ) -> Self {
        let shared = Arc::new(Shared {
            seeds,
            dialer,
            settings: settings.clone(),
            runtime: runtime.clone(),
            map: watch::Sender::new(Arc::default()),
            wanted: Notify::new(),
        });
        shared.wanted.notify_one();
        let task = runtime.spawn(keep_map(Arc::clone(&shared)));
        Self { shared, _task: Task(task.abort_handle()) }
    }

    /// The connection to the slot's primary, if the map has one.
    pub(super) fn connection_of_slot(&self, slot: u16) -> Option<Arc<RedisConnection>> {
        let map = self.shared.map.borrow();
        map.connections.get(map.address_of(slot)?).cloned()
    }

    /// The connection to this server, which need not be in the map.
    pub(super) fn connection_to(&self, address: &Address) -> Arc<RedisConnection> {
        if let Some(connection) = self.shared.map.borrow().connections.get(address) {
            return Arc::clone(connection);
        }
        let connection = Arc::new(self.shared.open(address));
        self.shared.map.send_modify(|map| {
            let mut connections = map.connections.clone();
            connections.entry(address.clone()).or_insert_with(|| Arc::clone(&connection));
            *map = Arc::new(Map { ranges: map.ranges.clone(), connections });
        });
        connection
    }

    /// Requests a new map: a server did not keep the slot that the map names.
    pub(super) fn refresh(&self) {
        self.shared.wanted.notify_one();
    }

    /// Requests a new map and waits for it.
    pub(super) async fn refreshed(&self) {
        let mut map = self.shared.map.subscribe();
        self.refresh();
        // `self` holds the sender, so this does not fail.
        let _ = map.changed().await;
    }

    /// Every primary in the map, with its slots.
    pub(super) fn primaries(&self) -> Vec<(Arc<RedisConnection>, Ranges)> {
        let map = self.shared.map.borrow();
        let mut primaries: HashMap<&Address, Ranges> = HashMap::new();
        for (first, last, address) in &map.ranges {
            primaries.entry(address).or_default().push((*first, *last));
        }
        let connection = |address: &Address| map.connections.get(address).cloned();
        primaries
            .into_iter()
            .filter_map(|(address, slots)| Some((connection(address)?, slots)))
            .collect()
    }
}

impl Shared {
    fn open(&self, address: &Address) -> RedisConnection {
        let route = Route::Fixed(address.clone());
        RedisConnection::new(route, self.dialer.clone(), &self.settings, &self.runtime)
    }

    /// Fetches the map of the server with the newest configuration.
    async fn fetch(&self) -> Option<Vec<(u16, u16, Address)>> {
        let mut asked: Vec<_> = self.map.borrow().connections.keys().cloned().collect();
        asked.extend(self.seeds.iter().cloned());
        asked.sort();
        asked.dedup();
        asked.truncate(ASKED_MAX);
        let mut pipeline = redis::pipe();
        pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
        let answers = self.dialer.query_all(&asked, &pipeline).await;
        let maps = answers.iter().filter_map(|(from, answers)| {
            let rank = rank(answers.first()?)?;
            Some((rank, ranges(answers.get(1)?, from)?))
        });
        maps.max_by_key(|(rank, _)| *rank).map(|(_, ranges)| ranges)
    }
}

/// Fetches the map whenever it is requested. Never returns.
async fn keep_map(shared: Arc<Shared>) {
    loop {
        shared.wanted.notified().await;
        match shared.fetch().await {
            Some(ranges) => {
                let old = Arc::clone(&shared.map.borrow());
                // A server without slots that was sent to recently may be about to get some.
                let mut connections = old.connections.clone();
                connections.retain(|_, connection| connection.is_young());
                for (_, _, address) in &ranges {
                    if !connections.contains_key(address) {
                        let held = old.connections.get(address).cloned();
                        let connection = held.unwrap_or_else(|| Arc::new(shared.open(address)));
                        connections.insert(address.clone(), connection);
                    }
                }
                shared.map.send_replace(Arc::new(Map { ranges, connections }));
            }
            None => shared.wanted.notify_one(),
        }
        sleep(REST).await;
    }
}

/// Orders servers by whether their cluster works, then by configuration epoch.
fn rank(info: &Value) -> Option<(bool, u64)> {
    let text = text(info)?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let epoch = field("cluster_current_epoch:")?.parse().ok()?;
    Some((field("cluster_state:")? == "ok", epoch))
}

/// Decodes an answer to `CLUSTER SLOTS` that `from` sent.
fn ranges(slots: &Value, from: &Address) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(slots) = slots else { return None };
    let mut ranges = Vec::with_capacity(slots.len().min(SLOTS.into()));
    for range in slots {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        // A server that does not know its own address leaves out the host.
        let host = match bytes(host) {
            Some(b"" | b"?") | None => from.host.clone(),
            Some(host) => String::from_utf8(host.to_vec()).ok()?,
        };
        let address = Address { host, port: u16::try_from(*port).ok()? };
        ranges.push((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address));
    }
    ranges.sort();
    let mut primaries: Vec<_> = ranges.iter().map(|(_, _, address)| address).collect();
    primaries.sort();
    primaries.dedup();
    (primaries.len() <= PRIMARIES_MAX).then_some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address { host: "h".into(), port }
    }

    #[test]
    fn a_slot_is_found_in_its_range_or_not_at_all() {
        let ranges = vec![(0, 5, address(1)), (6, 6, address(2)), (10, 20, address(1))];
        let map = Map { ranges, connections: HashMap::new() };
        for (slot, port) in
            [(0, Some(1)), (5, Some(1)), (6, Some(2)), (7, None), (10, Some(1)), (21, None)]
        {
            assert_eq!(map.address_of(slot), port.map(address).as_ref(), "{slot}");
        }
    }

    #[test]
    fn an_empty_host_in_an_answer_stands_for_the_server_that_sent_it() {
        let node = |host| Value::Array(vec![host, Value::Int(7)]);
        let range =
            |first, host| Value::Array(vec![Value::Int(first), Value::Int(first + 1), node(host)]);
        let other = Value::BulkString(b"o".to_vec());
        let slots = Value::Array(vec![range(2, Value::Nil), range(0, other)]);
        let known = ranges(&slots, &address(1)).expect("read");
        let other = Address { host: "o".into(), port: 7 };
        assert_eq!(known, [(0, 1, other), (2, 3, address(7))]);
        assert_eq!(ranges(&Value::Nil, &address(1)), None);
    }
}
