//! Bounds how fast the clients of one address create sessions, and open pages that link accounts.
//!
//! Each address has a bucket of tokens: a session takes one, and the bucket fills with time. Only
//! `take` of [`SessionRate`] reads a clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_http::RequestHead;
use actix_http::header::HeaderValue;

use crate::client_address::{AddressKey, TrustedProxies, Unknown};
use crate::metrics::SESSIONS_THROTTLED;
use crate::refusal::Refused;
use crate::{Error, Settings};

/// Most addresses whose buckets are not full. At the bound full buckets are removed, of which
/// nothing is lost; if there are none, further addresses are not limited until one is full.
const ADDRESSES_MAX: usize = 65_536;

/// The interval at which full buckets are removed at that bound.
const SWEEP: Duration = Duration::from_millis(100);

/// The header in which proxies name their clients.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The rates of all addresses. All workers share it.
#[derive(Debug)]
pub(crate) struct SessionRate {
    proxies: TrustedProxies,
    /// `None` if there is no limit.
    buckets: Option<Mutex<Buckets>>,
    /// A client whose address is unknown is logged, once.
    warns: AtomicBool,
}

impl SessionRate {
    /// The rates under these settings.
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let per_sec = settings.sessions_per_address_per_sec;
        let burst = settings.sessions_per_address_burst.max(1);
        // The clients of a node on loopback without a public URL are on this machine.
        let is_public = !settings.listen.ip().is_loopback() || settings.public_url.is_some();
        Ok(Self {
            proxies: TrustedProxies::new(settings)?,
            buckets: (per_sec > 0).then(|| Mutex::new(Buckets::new(per_sec, burst))),
            warns: AtomicBool::new(is_public),
        })
    }

    /// Takes the token for one session, or for one page, from the bucket of the request's client. Returns the
    /// address of the client, if it is known.
    pub(crate) fn take(&self, head: &RequestHead) -> Result<Option<AddressKey>, Refused> {
        let Some(peer) = head.peer_addr else { return Ok(None) };
        let (peer, forwarded) = (peer.ip(), head.headers.get_all(FORWARDED_FOR));
        let forwarded = forwarded.map(HeaderValue::as_bytes);
        match (self.proxies.client(peer, forwarded), &self.buckets) {
            (Ok(address), Some(buckets)) => {
                // A bucket is one number, so it is right in any case.
                let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
                let taken = buckets.take(address, Instant::now()).map_err(|wait| {
                    SESSIONS_THROTTLED.inc();
                    Refused::too_many_sessions_of_address(wait)
                });
                taken.map(|()| Some(address))
            }
            (Err(unknown), Some(_)) => {
                if self.warns.swap(false, Ordering::Relaxed) {
                    warn_of(unknown);
                }
                Ok(None)
            }
            (address, None) => Ok(address.ok()),
        }
    }
}

fn warn_of(unknown: Unknown) {
    match unknown {
        Unknown::PrivatePeer => tracing::warn!(
            "the rate of new sessions by address is not limited: a connection comes from a private \
             address; name the proxies in `front.trusted_proxies`, or set \
             `front.sessions_per_address_per_sec` to 0"
        ),
        Unknown::NotForwarded => tracing::warn!(
            "the rate of new sessions by address is not limited: a proxy of \
             `front.trusted_proxies` names no address in `X-Forwarded-For`; let it add the header"
        ),
    }
}

/// The buckets of addresses. A full bucket needs no entry.
#[derive(Debug)]
struct Buckets {
    /// The time in which one token is added.
    interval: Duration,
    /// The time in which an empty bucket is filled.
    fill_time: Duration,
    /// When each bucket will be full.
    full_at: HashMap<AddressKey, Instant>,
    swept: Option<Instant>,
}

impl Buckets {
    fn new(per_sec: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_sec;
        Self { interval, fill_time: interval * burst, full_at: HashMap::new(), swept: None }
    }

    /// Takes a token, or returns the time until there is one.
    fn take(&mut self, address: AddressKey, now: Instant) -> Result<(), Duration> {
        let full_at = self.full_at.get(&address).copied().unwrap_or(now).max(now) + self.interval;
        let missing = full_at.saturating_duration_since(now);
        if missing > self.fill_time {
            return Err(missing - self.fill_time);
        }
        if self.full_at.len() >= ADDRESSES_MAX && !self.full_at.contains_key(&address) {
            self.sweep(now);
            if self.full_at.len() >= ADDRESSES_MAX {
                return Ok(());
            }
        }
        self.full_at.insert(address, full_at);
        Ok(())
    }

    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.swept = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> AddressKey {
        let public = std::net::Ipv4Addr::from_bits(0x0b00_0000 + n);
        TrustedProxies::default().direct_client(public.into()).unwrap()
    }

    #[test]
    fn after_a_burst_an_address_gets_tokens_at_its_rate() {
        let mut buckets = Buckets::new(10, 3);
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        for _ in 0..3 {
            assert_eq!(buckets.take(address(1), now), Ok(()));
        }
        assert_eq!(buckets.take(address(1), now), Err(Duration::from_millis(100)));
        assert_eq!(buckets.take(address(2), now), Ok(()), "another address");
        assert_eq!(buckets.take(address(1), at(99)), Err(Duration::from_millis(1)));
        assert_eq!(buckets.take(address(1), at(100)), Ok(()));
        assert!(
            buckets.take(address(1), at(101)).is_err(),
            "a refusal costs nothing, and one token came"
        );
        for _ in 0..3 {
            assert_eq!(buckets.take(address(1), at(10_000)), Ok(()));
        }
        assert!(buckets.take(address(1), at(10_000)).is_err(), "the bucket has a size");
    }

    #[test]
    fn the_number_of_buckets_is_bounded_and_full_ones_go_first() {
        let mut buckets = Buckets::new(10, 3);
        let now = Instant::now();
        for _ in 0..3 {
            buckets.take(address(0), now).unwrap();
        }
        for n in 1..ADDRESSES_MAX as u32 + 100 {
            assert_eq!(buckets.take(address(n), now), Ok(()));
        }
        assert_eq!(buckets.full_at.len(), ADDRESSES_MAX);
        let later = now + Duration::from_millis(150);
        assert_eq!(buckets.take(address(u32::from(u16::MAX) + 500), later), Ok(()));
        assert_eq!(buckets.full_at.len(), 2, "the bucket that is not full, and the new one");
    }
}
