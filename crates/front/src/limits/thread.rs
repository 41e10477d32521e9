//! The tokens that one thread holds, so that it neither takes a lock nor changes shared memory for each
//! request of a limit that is much used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actors::{CountEntry, Counted, NodeLimits, RateEntry, Taken};
use budget::limit::{Rate, Refused as NoToken, ThreadTokens};
use tenants::{ClusterLimits, Per, RateRule};

use crate::over_limit::{LimitKind, OverLimit};

/// How long the tokens of a client are remembered after its last request.
const UNUSED: Duration = Duration::from_secs(2);

/// Most clients of one rate whose tokens a thread remembers. Requests of others ask the node each time.
const SUBJECTS_MAX: usize = 10_000;

/// To whom and what a request belongs.
pub(super) struct Subject<'a> {
    pub(super) principal: &'a str,
    /// The name of the client's key.
    pub(super) key: Option<&'a str>,
    /// The tool that is called.
    pub(super) tool: Option<&'a str>,
}

/// The limits of all tenants, as one thread sees them.
#[derive(Debug, Default)]
pub(super) struct ThreadLimits {
    tenants: HashMap<Arc<str>, OfTenant>,
    /// The requests of each tenant that wait for a share.
    waiting: HashMap<Box<str>, u32>,
    swept: Duration,
}

#[derive(Debug)]
struct OfTenant {
    limits: Arc<ClusterLimits>,
    rates: Vec<OfRate>,
    exchanges: Option<Arc<CountEntry>>,
}

/// The tokens of one rate.
#[derive(Debug, Default)]
struct OfRate {
    /// If all clients have the rate together.
    all: Option<Tokens>,
    /// Otherwise, by client or key.
    each: HashMap<Box<str>, Tokens>,
}

#[derive(Debug)]
struct Tokens {
    entry: Arc<RateEntry>,
    held: ThreadTokens,
}

impl ThreadLimits {
    /// Takes a token of each rate that applies. If one has none, none is taken.
    pub(super) fn take(
        &mut self,
        node: &NodeLimits,
        threads: usize,
        tenant: &Arc<str>,
        limits: &Arc<ClusterLimits>,
        subject: &Subject<'_>,
    ) -> Result<(), OverLimit> {
        if limits.rates.is_empty() {
            return Ok(());
        }
        let now = node.now();
        self.sweep(now);
        let of_tenant = self.tenant(tenant, limits);
        let asking = Asking { node, threads, tenant, now };
        for at in 0..limits.rates.len() {
            let rule = &limits.rates[at];
            let Some(name) = applies(rule, subject) else { continue };
            if let Err(no_token) = of_tenant.rates[at].take(&asking, rule, name) {
                for (rule, rate) in limits.rates.iter().zip(&mut of_tenant.rates).take(at) {
                    if let Some(name) = applies(rule, subject) {
                        rate.give_back(name);
                    }
                }
                return Err(OverLimit::of_rate(rule, no_token));
            }
        }
        Ok(())
    }

    /// Takes one of the requests in flight that the tenant may have.
    pub(super) fn take_exchange(
        &mut self,
        node: &NodeLimits,
        tenant: &Arc<str>,
        limits: &Arc<ClusterLimits>,
        max: u32,
    ) -> Result<Counted, OverLimit> {
        let now = node.now();
        self.sweep(now);
        let of_tenant = self.tenant(tenant, limits);
        loop {
            // Kept for a second: to find it takes the lock of all limits of the node.
            let entry = of_tenant.exchanges.get_or_insert_with(|| {
                node.count(tenant, LimitKind::Exchanges.name(), u64::from(max))
            });
            match entry.take(now) {
                Some(taken) => {
                    let kind = LimitKind::Exchanges;
                    return taken.map_err(|no_token| OverLimit::of_count(kind, max, no_token));
                }
                // It was forgotten meanwhile.
                None => of_tenant.exchanges = None,
            }
        }
    }

    /// Notes that a request waits. Returns whether it may.
    pub(super) fn begin_to_wait(&mut self, tenant: &str, max: u32) -> bool {
        let waiting = self.waiting.entry(tenant.into()).or_default();
        let may_wait = *waiting < max;
        *waiting += u32::from(may_wait);
        may_wait
    }

    /// Notes that a request does not wait any more.
    pub(super) fn end_to_wait(&mut self, tenant: &str) {
        if let Some(waiting) = self.waiting.get_mut(tenant) {
            *waiting -= 1;
            if *waiting == 0 {
                self.waiting.remove(tenant);
            }
        }
    }

    fn tenant(&mut self, tenant: &Arc<str>, limits: &Arc<ClusterLimits>) -> &mut OfTenant {
        let new = || {
            let rates = limits.rates.iter().map(|_| OfRate::default()).collect();
            OfTenant { limits: Arc::clone(limits), rates, exchanges: None }
        };
        // The name is compared before it is copied.
        if !self.tenants.contains_key(tenant) {
            self.tenants.insert(Arc::clone(tenant), new());
        }
        let of_tenant = self.tenants.entry(Arc::clone(tenant)).or_insert_with(new);
        if !Arc::ptr_eq(&of_tenant.limits, limits) {
            if of_tenant.limits != *limits {
                *of_tenant = new();
            }
            of_tenant.limits = Arc::clone(limits);
        }
        of_tenant
    }

    /// Forgets clients that send nothing, once a second.
    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept) < Duration::from_secs(1) {
            return;
        }
        self.swept = now;
        let is_used = |tokens: &Tokens| now.saturating_sub(tokens.held.used()) < UNUSED;
        for of_tenant in self.tenants.values_mut() {
            of_tenant.exchanges = None;
            for rate in &mut of_tenant.rates {
                rate.all.take_if(|tokens| !is_used(tokens));
                rate.each.retain(|_, tokens| is_used(tokens));
            }
        }
        self.tenants.retain(|_, of_tenant| {
            let is_used = |rate: &OfRate| rate.all.is_some() || !rate.each.is_empty();
            of_tenant.rates.iter().any(is_used)
        });
    }
}

/// The client or the key that has the rate, if the rate applies to the request.
pub(super) fn applies<'a>(rule: &RateRule, subject: &Subject<'a>) -> Option<&'a str> {
    if !rule.applies_to_tool(subject.tool) || !rule.applies_to_key(subject.key) {
        return None;
    }
    Some(match rule.per {
        Per::Tenant => "",
        Per::Principal => subject.principal,
        Per::Key => subject.key.unwrap_or_default(),
    })
}

/// Where tokens come from.
struct Asking<'a> {
    node: &'a NodeLimits,
    threads: usize,
    tenant: &'a str,
    now: Duration,
}

impl Asking<'_> {
    fn entry(&self, rule: &RateRule, subject: &str) -> Arc<RateEntry> {
        let rate = Rate { per_sec: rule.per_sec(), burst: f64::from(rule.burst) };
        self.node.rate(self.tenant, (&rule.name, LimitKind::of(rule).name()), subject, rate)
    }

    fn tokens(&self, rule: &RateRule, subject: &str) -> Tokens {
        Tokens { entry: self.entry(rule, subject), held: ThreadTokens::default() }
    }
}

impl OfRate {
    fn take(&mut self, asking: &Asking<'_>, rule: &RateRule, subject: &str) -> Result<(), NoToken> {
        if rule.per == Per::Tenant {
            let tokens = self.all.get_or_insert_with(|| asking.tokens(rule, subject));
            return tokens.take(asking, rule, subject);
        }
        if let Some(tokens) = self.each.get_mut(subject) {
            return tokens.take(asking, rule, subject);
        }
        let mut tokens = asking.tokens(rule, subject);
        let taken = tokens.take(asking, rule, subject);
        if self.each.len() < SUBJECTS_MAX {
            self.each.insert(subject.into(), tokens);
        }
        taken
    }

    fn give_back(&mut self, subject: &str) {
        let tokens = self.each.get_mut(subject);
        if let Some(tokens) = tokens.or(self.all.as_mut()) {
            tokens.held.give_back();
        }
    }
}

impl Tokens {
    fn take(&mut self, asking: &Asking<'_>, rule: &RateRule, subject: &str) -> Result<(), NoToken> {
        let Self { entry, held } = self;
        held.take(asking.now, |asked, unused| {
            let mut taken = entry.take(asked, unused, asking.threads, asking.now);
            if taken == Taken::Forgotten {
                *entry = asking.entry(rule, subject);
                taken = entry.take(asked, 0, asking.threads, asking.now);
            }
            match taken {
                Taken::Tokens(tokens) => Ok(tokens),
                Taken::Refused(no_token) => Err(no_token),
                Taken::Forgotten => Err(NoToken::Wait),
            }
        })
    }
}
