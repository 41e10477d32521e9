//! The client of a tenant that is not attacked: its calls are counted and timed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::Node;
use tests::mcp::{self, Client};

const NEWEST: &str = "2025-11-25";

/// The pause between two calls.
const PAUSE: Duration = Duration::from_millis(3);

/// The bytes of the argument of a large call: more than a body for which no memory is taken.
const LARGE: usize = 60_000;

/// The clients of the tenants `quiet` (a native server) and `steady` (a process).
pub(crate) struct Victim {
    /// Keeps its connection.
    native: Client,
    /// A new connection for each call, in the same session.
    connecting: Client,
    steady: Client,
    urls: [String; 2],
}

/// What the victim calls in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A large call of the native server.
    Large,
    Native,
    /// A call of the native server over a new connection.
    Connection,
    Process,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Large, Self::Native, Self::Connection, Self::Process];

    fn of(number: usize) -> Self {
        match number % 8 {
            0 => Self::Large,
            2 | 5 => Self::Connection,
            3 | 7 => Self::Process,
            _ => Self::Native,
        }
    }
}

/// How long calls took; sorted.
pub(crate) struct Times(Vec<(Duration, Kind)>);

impl Times {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that `percent` of the calls did not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)].0
    }

    /// The p90 and the longest of each kind of call.
    pub(crate) fn of_kinds(&self) -> String {
        let of_kind = |kind| {
            let times: Vec<_> = self.0.iter().filter(|time| time.1 == kind).collect();
            let (p90, max) = (times.get(times.len() * 9 / 10)?.0, times.last()?.0);
            Some(format!("{kind:?} {p90:.1?}/{max:.1?}"))
        };
        Kind::ALL.into_iter().filter_map(of_kind).collect::<Vec<_>>().join(", ")
    }
}

impl Victim {
    /// Opens a session with each tenant.
    pub(crate) async fn open(node: &Node) -> Result<Self> {
        let urls = ["quiet", "steady"].map(|tenant| node.mcp(tenant));
        let native = Client::open(&*urls[0], NEWEST).await?;
        let connecting = native.twin();
        let steady = Client::open(&*urls[1], NEWEST).await?.keeping_connections();
        Ok(Self { native: native.keeping_connections(), connecting, steady, urls })
    }

    /// Makes calls for at least this time and at least so many. Fails if one call fails.
    pub(crate) async fn call(&self, time: Duration, calls: usize) -> Result<Times> {
        let began = Instant::now();
        let mut times = Vec::new();
        while began.elapsed() < time || times.len() < calls {
            ensure!(began.elapsed() < time * 5, "only {} calls in {:?}", times.len(), time * 5);
            let number = times.len();
            let kind = Kind::of(number);
            let (client, length) = match kind {
                Kind::Large => (&self.native, LARGE),
                Kind::Native => (&self.native, 0),
                Kind::Connection => (&self.connecting, 0),
                Kind::Process => (&self.steady, 0),
            };
            // Written before the clock runs: this program is not optimized, and has the node's core.
            let body = call_of(client, length);
            let asked = Instant::now();
            answered(client, body)
                .await
                .with_context(|| format!("call {number}, {kind:?}, after {:?}", asked.elapsed()))?;
            times.push((asked.elapsed(), kind));
            tokio::time::sleep(PAUSE).await;
        }
        times.sort_unstable_by_key(|(time, _)| *time);
        Ok(Times(times))
    }

    /// Opens and ends a session with each tenant. Returns how long that took.
    pub(crate) async fn open_more(&self) -> Result<Duration> {
        let began = Instant::now();
        for url in &self.urls {
            let client = Client::open(&**url, NEWEST).await.with_context(|| url.clone())?;
            answered(&client, call_of(&client, 0)).await?;
            client.delete().await?;
        }
        Ok(began.elapsed())
    }
}

/// The text of a call with an argument of so many bytes, or with none.
fn call_of(client: &Client, length: usize) -> String {
    let arguments = if length == 0 { json!({}) } else { json!({ "text": "x".repeat(length) }) };
    client.call("test_simple_text", arguments).to_string()
}

async fn answered(client: &Client, body: String) -> Result<()> {
    let result = mcp::result(mcp::final_response(client.send_bytes(body).await?).await?)?;
    ensure!(result["content"][0]["type"] == "text", "{result}");
    Ok(())
}
