//! The limits of tenants at the front: which requests there is a token for, and what the others get.
//!
//! Each request of a body counts by itself, before its permissions are looked at, and each notification
//! and each stream that a client opens by the same rates. Responses are not counted: a server has asked for them. Where a rate has tools, they are refused
//! if a server could read a call in them. The decision takes no round trip. A
//! request that finds a limit without a share waits for one, for an interval at most.

mod thread;

use std::cell::RefCell;
use std::sync::Arc;

use actors::{Counted, NodeLimits, PendingSession, Taken};
use budget::limit::{INTERVAL, Rate, Refused as NoToken};
use protocol::{Ambiguous, Body as Posted, ErrorCode, Message, Named, Rejection, RequestId, named};
use tenants::{ClusterLimits, Tenant};
use tokio::time::{Instant, sleep_until};

use thread::{Subject, ThreadLimits, applies};

use crate::authentication::Credential;
use crate::exchange::Exchange;
use crate::over_limit::{LimitKind, OverLimit};
use crate::permissions::id_of;
use crate::refusal::Refused;

/// Most requests of one tenant that wait for a share at one thread. Others are refused at once.
const WAITING_MAX: u32 = 256;

/// The limits, as one thread sees them.
#[derive(Debug)]
pub(crate) struct Limits {
    node: NodeLimits,
    /// The threads that serve clients.
    threads: usize,
    of_thread: RefCell<ThreadLimits>,
}

impl Clone for Limits {
    /// For another thread, which shares no memory with this one that each request changes.
    fn clone(&self) -> Self {
        Self::new(&self.node, self.threads)
    }
}

/// Why a request is refused.
pub(crate) enum Limited {
    /// A limit is reached.
    Over(OverLimit, Option<RequestId>),
    /// It cannot be told which limit applies.
    Ambiguous(Option<RequestId>),
}

impl Limited {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Over(..) => ErrorCode::Refused,
            Self::Ambiguous(_) => ErrorCode::InvalidParams,
        }
    }

    /// The id of the request; `None` if the message is none.
    pub(crate) fn id(&self) -> Option<&RequestId> {
        let (Self::Over(_, id) | Self::Ambiguous(id)) = self;
        id.as_ref()
    }

    /// The JSON-RPC error.
    pub(crate) fn into_rejection(self) -> Rejection {
        match self {
            Self::Over(over, id) => over.rejection().of(id),
            Self::Ambiguous(id) => {
                Rejection::new(ErrorCode::InvalidParams, Ambiguous.to_string()).of(id)
            }
        }
    }
}

impl From<Limited> for Refused {
    fn from(limited: Limited) -> Self {
        match limited {
            Limited::Over(over, id) => Self::from(over).of(id),
            ambiguous => ambiguous.into_rejection().into(),
        }
    }
}

impl Limits {
    /// The limits of this node for one of so many threads.
    pub(crate) fn new(node: &NodeLimits, threads: usize) -> Self {
        Self { node: node.clone(), threads, of_thread: RefCell::default() }
    }

    /// Takes the tokens that the messages of a body need. A member of a batch that gets none is replaced by an
    /// error, which the session sends as its answer; a message that is alone is refused.
    pub(crate) async fn admit(
        &self,
        tenant: &Tenant,
        credential: &Credential,
        body: &mut Posted,
        exchange: &mut Exchange,
    ) -> Result<(), Limited> {
        if tenant.cluster_limits.is_none() {
            return Ok(());
        }
        match body {
            Posted::One(message) => {
                self.admit_message(tenant, credential, message, exchange, None).await
            }
            // Boxed: most bodies are one message, and each request would reserve memory for it.
            Posted::Batch(members) => {
                Box::pin(self.admit_batch(tenant, credential, members, exchange)).await;
                Ok(())
            }
        }
    }

    async fn admit_batch(
        &self,
        tenant: &Tenant,
        credential: &Credential,
        members: &mut [Result<Message, Rejection>],
        exchange: &mut Exchange,
    ) {
        for (at, member) in members.iter_mut().enumerate() {
            if let Ok(message) = &*member
                && let Err(limited) =
                    self.admit_message(tenant, credential, message, exchange, Some(at)).await
            {
                *member = Err(limited.into_rejection());
            }
        }
    }

    /// Takes what one message needs of each limit that applies to it. `at`: its place in a batch.
    pub(crate) async fn admit_message(
        &self,
        tenant: &Tenant,
        credential: &Credential,
        message: &Message,
        exchange: &mut Exchange,
        at: Option<usize>,
    ) -> Result<(), Limited> {
        let admitted = self.judge_message(tenant, credential, message, exchange).await;
        if let (Err(limited), Some(audited)) = (&admitted, exchange.audited()) {
            let reason = match limited {
                Limited::Over(..) => "limits",
                Limited::Ambiguous(_) => "malformed",
            };
            audited.over_limit(message, reason, limited.code().number(), at);
        }
        admitted
    }

    async fn judge_message(
        &self,
        tenant: &Tenant,
        credential: &Credential,
        message: &Message,
        exchange: &mut Exchange,
    ) -> Result<(), Limited> {
        let Some(limits) = &tenant.cluster_limits else { return Ok(()) };
        let tool = match limits.has_tools().then(|| named(message)) {
            Some(Ok(Named::Tool(name))) => Some(name),
            Some(Ok(_)) | None => None,
            // A server could take it for a call of another tool, also if this node takes it for a
            // message that does not count.
            Some(Err(Ambiguous)) => return Err(Limited::Ambiguous(id_of(message))),
        };
        let id = || id_of(message);
        let key = if limits.has_keys() { credential.key_name(tenant) } else { None };
        let subject =
            Subject { principal: credential.principal.name(), key, tool: tool.as_deref() };
        let taken = match message {
            Message::Request(_) => self.take_all(tenant, limits, &subject, exchange).await,
            Message::Notification(_) => {
                let take = || self.take_of(tenant, limits, &subject, "notifications");
                self.or_wait(tenant, take).await
            }
            // The server has asked for it, and waits.
            Message::Response(_) => Ok(()),
        };
        taken.map_err(|over| {
            exchange.limited(over.kind);
            Limited::Over(over, id())
        })
    }

    /// Takes what a request needs.
    async fn take_all(
        &self,
        tenant: &Tenant,
        limits: &Arc<ClusterLimits>,
        subject: &Subject<'_>,
        exchange: &mut Exchange,
    ) -> Result<(), OverLimit> {
        let taken = || {
            let mut of_thread = self.of_thread.borrow_mut();
            of_thread.take(&self.node, self.threads, &tenant.name, limits, subject)
        };
        self.or_wait(tenant, taken).await?;
        if let Some(per_day) = limits.log_bytes_per_day {
            self.or_wait(tenant, || self.check_log(tenant, per_day)).await?;
        }
        self.take_exchange(tenant, exchange).await
    }

    /// Checks whether the sessions of the tenant may add events to their logs.
    fn check_log(&self, tenant: &Tenant, per_day: u64) -> Result<(), OverLimit> {
        let allowed = self.node.log_bytes(&tenant.name).and_then(|log| log.allows(self.node.now()));
        allowed.unwrap_or(Ok(())).map_err(|no_token| OverLimit::of_log_bytes(per_day, no_token))
    }

    /// Takes a token of each rate for a message or a stream of this kind. Each kind has the same rates as
    /// requests, and counts by itself, so that a client at its limit can still cancel a request and get the
    /// answers to others.
    fn take_of(
        &self,
        tenant: &Tenant,
        limits: &ClusterLimits,
        subject: &Subject<'_>,
        kind: &'static str,
    ) -> Result<(), OverLimit> {
        for rule in &limits.rates {
            let Some(client) = applies(rule, subject) else { continue };
            let rate = Rate { per_sec: rule.per_sec(), burst: f64::from(rule.burst) };
            // No rate in settings has this name.
            let name = format!("{}\n{kind}", rule.name);
            let entry = self.node.rate(&tenant.name, (&name, kind), client, rate);
            // One token: others would be lost.
            let no_token = match entry.take(1, 0, usize::MAX, self.node.now()) {
                Taken::Tokens(_) => continue,
                Taken::Refused(no_token) => no_token,
                Taken::Forgotten => NoToken::Wait,
            };
            return Err(OverLimit::of_rate(rule, no_token));
        }
        Ok(())
    }

    async fn take_exchange(
        &self,
        tenant: &Tenant,
        exchange: &mut Exchange,
    ) -> Result<(), OverLimit> {
        let Some(limits) = &tenant.cluster_limits else { return Ok(()) };
        let Some(max) = limits.exchanges_max else { return Ok(()) };
        let taken = || {
            let mut of_thread = self.of_thread.borrow_mut();
            of_thread.take_exchange(&self.node, &tenant.name, limits, max)
        };
        exchange.hold(self.or_wait(tenant, taken).await?);
        Ok(())
    }

    /// Takes what a stream needs that a client opens: a token of each rate, and one of the open streams of the
    /// tenant for as long as the exchange goes on.
    pub(crate) async fn admit_stream(
        &self,
        tenant: &Tenant,
        credential: &Credential,
        exchange: &mut Exchange,
    ) -> Result<(), OverLimit> {
        let Some(limits) = &tenant.cluster_limits else { return Ok(()) };
        let key = if limits.has_keys() { credential.key_name(tenant) } else { None };
        let subject = Subject { principal: credential.principal.name(), key, tool: None };
        let take = || self.take_of(tenant, limits, &subject, "streams");
        let taken = self.or_wait(tenant, take).await;
        taken.inspect_err(|over| exchange.limited(over.kind))?;
        let Some(max) = limits.streams_max else { return Ok(()) };
        let counted = self.count(tenant, LimitKind::Streams, max).await;
        let counted = counted.inspect_err(|over| exchange.limited(over.kind))?;
        exchange.hold(counted);
        Ok(())
    }

    async fn count(
        &self,
        tenant: &Tenant,
        kind: LimitKind,
        max: u32,
    ) -> Result<Counted, OverLimit> {
        let take = || loop {
            let entry = self.node.count(&tenant.name, kind.name(), u64::from(max));
            // An entry that was forgotten meanwhile is replaced.
            if let Some(taken) = entry.take(self.node.now()) {
                return taken.map_err(|no_token| OverLimit::of_count(kind, max, no_token));
            }
        };
        self.or_wait(tenant, take).await
    }

    /// Takes one of the sessions of the tenant, if their number is limited. It counts until the result is
    /// dropped, when the node has the session or there is none.
    pub(crate) async fn check_sessions(
        &self,
        tenant: &Tenant,
        exchange: &mut Exchange,
    ) -> Result<Option<PendingSession>, OverLimit> {
        let max = tenant.cluster_limits.as_ref().and_then(|limits| limits.sessions_max);
        let (Some(max), Some(entry)) = (max, self.node.sessions(&tenant.name)) else {
            return Ok(None);
        };
        let take = || match entry.take_pending(self.node.now()) {
            Some(Err(no_token)) => Err(OverLimit::of_count(LimitKind::Sessions, max, no_token)),
            Some(Ok(pending)) => Ok(Some(pending)),
            None => Ok(None),
        };
        let taken = self.or_wait(tenant, take).await;
        taken.inspect_err(|over| exchange.limited(over.kind))
    }

    /// Tries again when a share arrives, for an interval at most.
    async fn or_wait<T>(
        &self,
        tenant: &Tenant,
        mut take: impl FnMut() -> Result<T, OverLimit>,
    ) -> Result<T, OverLimit> {
        let over = match take() {
            Err(over) if over.may_wait() => over,
            taken => return taken,
        };
        // Boxed: few requests wait.
        Box::pin(self.wait(tenant, over, take)).await
    }

    async fn wait<T>(
        &self,
        tenant: &Tenant,
        mut over: OverLimit,
        mut take: impl FnMut() -> Result<T, OverLimit>,
    ) -> Result<T, OverLimit> {
        let Some(_waiting) = Waiting::begin(&self.of_thread, &tenant.name) else {
            return Err(over);
        };
        let until = Instant::now() + INTERVAL;
        loop {
            let mut arrived = std::pin::pin!(self.node.shares_arrived());
            // What arrives from now on is not missed.
            arrived.as_mut().enable();
            over = match take() {
                Err(again) if again.may_wait() => again,
                taken => return taken,
            };
            tokio::select! {
                () = arrived => {}
                () = sleep_until(until) => return take().or(Err(over)),
            }
        }
    }
}

/// A request that waits for a share, until it is dropped.
struct Waiting<'a>(&'a RefCell<ThreadLimits>, &'a str);

impl<'a> Waiting<'a> {
    fn begin(of_thread: &'a RefCell<ThreadLimits>, tenant: &'a str) -> Option<Self> {
        let begun = of_thread.borrow_mut().begin_to_wait(tenant, WAITING_MAX);
        begun.then_some(Self(of_thread, tenant))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().end_to_wait(self.1);
    }
}
