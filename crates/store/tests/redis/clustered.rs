//! A cluster of six processes: three primaries, each with a replica.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::server::{Server, free_port};

/// How long the processes may take to find each other.
const START: Duration = Duration::from_secs(30);

/// First and last slot of each primary.
const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

/// Six processes. The first three begin as primaries, the others as their replicas.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    /// A cluster that serves every slot.
    pub(crate) async fn start() -> Self {
        let servers: Vec<_> = (0..6)
            .map(|_| {
                let bus = free_port().to_string();
                Server::start(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-node-timeout",
                    "1500",
                    "--cluster-port",
                    &bus,
                    "--cluster-replica-validity-factor",
                    "0",
                    "--repl-diskless-sync-delay",
                    "0",
                    "--repl-ping-replica-period",
                    "1",
                ])
            })
            .collect();
        let cluster = Self { servers };
        cluster.introduce().await;
        cluster
    }

    async fn introduce(&self) {
        for (server, (first, last)) in self.servers.iter().zip(SLOTS) {
            let (first, last) = (first.to_string(), last.to_string());
            let () = server.run(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        }
        for (epoch, server) in (1..).zip(&self.servers) {
            let () = server.run(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]).await;
        }
        let first = self.servers[0].port.to_string();
        let bus: Vec<String> = self.servers[0].run(&["CONFIG", "GET", "cluster-port"]).await;
        for server in &self.servers[1..] {
            let () = server.run(&["CLUSTER", "MEET", "127.0.0.1", &first, &bus[1]]).await;
        }
        self.until("everybody knows everybody", |info| info.contains("cluster_known_nodes:6"))
            .await;
        for (replica, primary) in self.servers[3..].iter().zip(&self.servers) {
            let id: String = primary.run(&["CLUSTER", "MYID"]).await;
            let () = replica.run(&["CLUSTER", "REPLICATE", &id]).await;
        }
        self.until("every slot is served", |info| info.contains("cluster_state:ok")).await;
        for server in &self.servers[..3] {
            self.replicated(server).await;
        }
    }

    async fn until(&self, what: &str, is_so: fn(&str) -> bool) {
        let until = Instant::now() + START;
        for server in &self.servers {
            while !is_so(&server.run::<String>(&["CLUSTER", "INFO"]).await) {
                assert!(Instant::now() < until, "not in time: {what}");
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn replicated(&self, primary: &Server) {
        let until = Instant::now() + START;
        while !primary.run::<String>(&["INFO", "replication"]).await.contains("state=online") {
            assert!(Instant::now() < until, "no replica came");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn url(&self) -> String {
        let seeds: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    pub(crate) fn primaries(&self) -> Vec<String> {
        self.servers[..3].iter().map(Server::url).collect()
    }
}

/// A cluster that all tests share.
pub(crate) fn shared() -> &'static Cluster {
    static SHARED: LazyLock<Cluster> = LazyLock::new(|| {
        // Tests have a runtime each, which cannot be waited on from within.
        let starting = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(Cluster::start())
        });
        starting.join().expect("the cluster starts")
    });
    &SHARED
}
