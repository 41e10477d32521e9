//! One backend of a catalog, as one session has it: the state of its link, its lists, and what it was
//! told.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use protocol::{InitializeResult, Listed, Method, Revision, ServerCapabilities, instructions_of};

use crate::failure::Failure;
use crate::list::{List, Reading};
use crate::pins::{Difference, Pinned};
use crate::saved::ServerState;

/// Shortest wait before a server that failed is started again, in milliseconds; it doubles each time. The time of a
/// server that cannot be reached is the backend's ([`backends::Backend::held_back_for`]).
const BACKOFF_MIN_MS: u64 = 1_000;
/// Longest such wait, in milliseconds.
const BACKOFF_MAX_MS: u64 = 60_000;
/// A link that lasted this long, in milliseconds, resets the wait after failures.
const STEADY_MS: u64 = 30_000;
/// How long a list that a server did not send is taken for empty, in milliseconds.
const LIST_RETRY_MS: u64 = 5_000;
/// Shortest time between two notifications that one list of one server has changed, in milliseconds.
const CHANGED_INTERVAL_MS: u64 = 1_000;
/// How long `initialize`, and requests that need all servers, wait for servers that are being started once
/// one is ready, in milliseconds. The others are added to the lists when they are ready.
pub(crate) const START_WAIT_MS: u64 = 10_000;
/// Why a server that has lost its state is not available.
const LOST: &str = "it has lost what it kept for this session";
/// Most bytes of the instructions of one server.
const INSTRUCTIONS_BYTES_MAX: usize = 4 << 10;

/// One backend of a catalog.
pub(crate) struct Child {
    pub(crate) state: State,
    /// Whether its first start has succeeded or failed.
    pub(crate) is_settled: bool,
    failures: u32,
    /// Why it is not available.
    pub(crate) failure: Failure,
    pub(crate) revision: Revision,
    pub(crate) capabilities: ServerCapabilities,
    pub(crate) instructions: Option<Box<str>>,
    /// By [`Listed`].
    lists: [ListState; 4],
    changes: [Change; 4],
    /// What the next owner of the session needs to carry its link on.
    pub(crate) saved: ServerState,
    /// A former owner of the session began the link.
    pub(crate) is_carried: bool,
    /// The resources to which the session is subscribed at this server.
    pub(crate) subscriptions: BTreeSet<Box<str>>,
}

/// The state of the link to a server. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    /// There is no link; one is opened at `again_at`.
    Down { again_at: u64 },
    /// The link is requested.
    Opening { until: u64 },
    /// The link is up, and the session has not sent `initialize` yet.
    Open { until: u64 },
    /// `initialize` is sent, with the request of this number.
    Initializing { until: u64, request: u64 },
    /// In use.
    Ready { since: u64 },
}

/// A list of a server.
#[derive(Default)]
enum ListState {
    /// Not read, or changed since.
    #[default]
    Unknown,
    Reading(Box<Reading>),
    Known(Arc<List>),
    /// The server did not send it. It is read again from this time on.
    Failed {
        again_at: u64,
    },
}

/// What the client was told of changes of a list.
#[derive(Clone, Copy, Default)]
struct Change {
    /// The client was told of a change, and has not asked for the list since.
    is_told: bool,
    told_at: Option<u64>,
    /// The client is to be told at this time.
    due_at: Option<u64>,
}

impl Child {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Down { again_at: 0 },
            is_settled: false,
            failures: 0,
            failure: Failure::new("it is being started"),
            revision: Revision::NEWEST_STABLE,
            capabilities: ServerCapabilities::default(),
            instructions: None,
            lists: Default::default(),
            changes: Default::default(),
            saved: ServerState::Anew,
            is_carried: false,
            subscriptions: BTreeSet::new(),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Whether requests wait for its start.
    pub(crate) fn is_starting(&self) -> bool {
        !self.is_settled
    }

    /// Until when requests that need all servers wait for its start. `start_ms`: how long that may take.
    pub(crate) fn awaited_until(&self, start_ms: u64) -> Option<u64> {
        let until = self.start_until().filter(|_| self.is_starting())?;
        Some(until.min(until.saturating_sub(start_ms).saturating_add(START_WAIT_MS)))
    }

    /// Whether the session does not use it any more: it has lost a state that clients rely on.
    pub(crate) fn is_lost(&self) -> bool {
        self.saved == ServerState::Lost
    }

    /// It has lost a state that clients rely on. A server that was never ready had none.
    pub(crate) fn note_state_lost(&mut self) {
        if self.is_ready() || self.is_carried {
            self.saved = ServerState::Lost;
        }
    }

    /// Is it ready, with such lists?
    pub(crate) fn has_list(&self, listed: Listed) -> bool {
        self.is_ready() && self.capabilities.lists(listed)
    }

    /// The server has answered `initialize`. Returns how its instructions differ from the approved ones.
    pub(crate) fn note_ready(
        &mut self,
        now: u64,
        result: &[u8],
        read: &InitializeResult,
        pinned: &Pinned,
    ) -> Option<Difference> {
        self.state = State::Ready { since: now };
        self.is_settled = true;
        self.revision = read.revision().unwrap_or(Revision::NEWEST_STABLE);
        self.capabilities = read.capabilities;
        let whole = instructions_of(result, usize::MAX);
        let difference = whole.as_ref().and_then(|text| pinned.difference_of_instructions(text));
        let is_refused = difference.as_ref().is_some_and(|difference| difference.is_refused);
        self.instructions =
            instructions_of(result, INSTRUCTIONS_BYTES_MAX).filter(|_| !is_refused).map(Into::into);
        difference
    }

    /// The link is lost, or could not be opened. A server that has lost its session, as a server over HTTP
    /// may at any time, is started again at once; the second time in succession after a wait. `is_awaited`:
    /// it has returned requests, which wait for that.
    pub(crate) fn note_down(&mut self, now: u64, failure: &Failure, is_awaited: bool) {
        let had_session = match self.state {
            State::Ready { .. } => is_awaited || matches!(self.saved, ServerState::Saved(_)),
            _ => self.is_carried,
        };
        if let State::Ready { since } = self.state
            && now.saturating_sub(since) >= STEADY_MS
        {
            self.failures = 0;
        }
        let is_at_once = had_session && self.failures == 0;
        let wait = match self.failures {
            _ if self.is_lost() => u64::MAX,
            0 if is_at_once => 0,
            failures => (BACKOFF_MIN_MS << failures.min(16)).min(BACKOFF_MAX_MS),
        };
        self.failures = self.failures.saturating_add(1);
        self.state = State::Down { again_at: now.saturating_add(wait) };
        self.is_settled = wait > 0;
        self.is_carried = false;
        if self.is_lost() {
            self.failure = Failure::new(LOST);
        } else {
            self.saved = ServerState::Anew;
            self.failure = failure.clone();
        }
        self.lists = Default::default();
    }

    /// Another server takes its place at once. Requests wait for that.
    pub(crate) fn begin_anew(&mut self, now: u64) {
        self.state = State::Down { again_at: now };
        self.is_settled = false;
        self.is_carried = false;
        self.saved = ServerState::Anew;
        self.failure = Failure::new("it is being started");
        self.lists = Default::default();
    }

    /// Its error, if it has the user open a page first: that is what calls of its tools get.
    pub(crate) fn page_required(&self) -> Option<&Bytes> {
        self.failure.page_required().filter(|_| !self.is_ready())
    }

    /// When its start has to be complete.
    pub(crate) fn start_until(&self) -> Option<u64> {
        match self.state {
            State::Opening { until }
            | State::Open { until }
            | State::Initializing { until, .. } => Some(until),
            State::Down { .. } | State::Ready { .. } => None,
        }
    }

    /// The list, if it is known.
    pub(crate) fn list(&self, listed: Listed) -> Option<&Arc<List>> {
        match &self.lists[listed as usize] {
            ListState::Known(list) => Some(list),
            _ => None,
        }
    }

    /// Replaces a known list by an equal one.
    pub(crate) fn share_list(&mut self, listed: Listed, list: Arc<List>) {
        if let ListState::Known(known) = &mut self.lists[listed as usize] {
            *known = list;
        }
    }

    pub(crate) fn reading(&mut self, listed: Listed) -> Option<&mut Reading> {
        match &mut self.lists[listed as usize] {
            ListState::Reading(reading) => Some(reading),
            _ => None,
        }
    }

    pub(crate) fn is_reading_any(&self) -> bool {
        self.lists.iter().any(|list| matches!(list, ListState::Reading(_)))
    }

    pub(crate) fn is_reading(&self, listed: Listed) -> bool {
        matches!(self.lists[listed as usize], ListState::Reading(_))
    }

    /// Has the list to be read?
    pub(crate) fn wants_list(&self, now: u64, listed: Listed) -> bool {
        self.has_list(listed)
            && match self.lists[listed as usize] {
                ListState::Unknown => true,
                ListState::Failed { again_at } => again_at <= now,
                ListState::Reading(_) | ListState::Known(_) => false,
            }
    }

    pub(crate) fn begin_reading(&mut self, listed: Listed, reading: Reading) {
        self.lists[listed as usize] = ListState::Reading(Box::new(reading));
    }

    /// All pages of the list are read. Returns it.
    pub(crate) fn end_reading(&mut self, listed: Listed) -> Option<(Arc<List>, Reported)> {
        match std::mem::take(&mut self.lists[listed as usize]) {
            ListState::Reading(mut reading) => {
                let left_out = std::mem::take(&mut reading.left_out);
                let differences = std::mem::take(&mut reading.differences);
                let (is_outdated, has_former_pins) = (reading.is_outdated, reading.has_former_pins);
                let list = Arc::new(reading.into_list());
                self.lists[listed as usize] = ListState::Known(Arc::clone(&list));
                Some((list, Reported { left_out, differences, is_outdated, has_former_pins }))
            }
            other => {
                self.lists[listed as usize] = other;
                None
            }
        }
    }

    /// The list is to be read again when it is needed.
    pub(crate) fn forget_list(&mut self, listed: Listed) {
        self.lists[listed as usize] = ListState::Unknown;
    }

    /// The server did not send its list.
    pub(crate) fn fail_list(&mut self, now: u64, listed: Listed) {
        let again_at = now.saturating_add(LIST_RETRY_MS);
        self.lists[listed as usize] = ListState::Failed { again_at };
    }

    /// The bytes that are kept of it, but for lists that are read to their ends.
    pub(crate) fn kept_bytes(&self) -> usize {
        let saved = match &self.saved {
            ServerState::Saved(state) => state.len(),
            ServerState::Anew | ServerState::Lost => 0,
        };
        let reading = self.lists.iter().map(|list| match list {
            ListState::Reading(reading) => reading.memory(),
            _ => 0,
        });
        saved + self.instructions.as_ref().map_or(0, |text| text.len()) + reading.sum::<usize>()
    }

    /// The bytes of its lists.
    pub(crate) fn list_bytes(&self) -> usize {
        let bytes = self.lists.iter().map(|list| match list {
            ListState::Known(list) => list.bytes,
            ListState::Reading(reading) => reading.bytes(),
            ListState::Unknown | ListState::Failed { .. } => 0,
        });
        bytes.sum()
    }

    /// The list has changed. Returns whether the client is to be told now: of many changes it is told at
    /// an interval, and only once until it asks for the list.
    pub(crate) fn note_changed(&mut self, now: u64, listed: Listed) -> bool {
        match &mut self.lists[listed as usize] {
            ListState::Reading(reading) => reading.is_outdated = true,
            list => *list = ListState::Unknown,
        }
        let change = &mut self.changes[listed as usize];
        if change.is_told || change.due_at.is_some() {
            return false;
        }
        let due_at = change.told_at.map_or(now, |told| told.saturating_add(CHANGED_INTERVAL_MS));
        if due_at > now {
            change.due_at = Some(due_at);
            return false;
        }
        *change = Change { is_told: true, told_at: Some(now), due_at: None };
        true
    }

    /// The client asks for the list. Resources and templates have one notification, and a client may read
    /// either list only.
    pub(crate) fn note_listed(&mut self, listed: Listed) {
        let told = match listed {
            Listed::Template => Listed::Resource,
            listed => listed,
        };
        self.changes[told as usize].is_told = false;
    }

    /// Whether the client is to be told of a change later.
    pub(crate) fn holds_change(&self) -> bool {
        self.changes.iter().any(|change| change.due_at.is_some())
    }

    /// Whether the client is to be told now of a change that was held back.
    pub(crate) fn take_due_change(&mut self, now: u64, listed: Listed) -> bool {
        let change = &mut self.changes[listed as usize];
        let is_due = change.due_at.is_some_and(|due_at| due_at <= now);
        if is_due {
            *change = Change { is_told: true, told_at: Some(now), due_at: None };
        }
        is_due
    }

    /// The time of its next timer. `retries`: whether a server that failed is started again by time.
    pub(crate) fn deadline(&self, retries: bool) -> Option<u64> {
        let own = match self.state {
            State::Down { again_at } => retries.then_some(again_at),
            State::Opening { .. } | State::Open { .. } | State::Initializing { .. } => {
                self.start_until()
            }
            State::Ready { .. } => None,
        };
        let lists = self.lists.iter().filter_map(|list| match list {
            ListState::Reading(reading) => Some(reading.until),
            _ => None,
        });
        let changes = self.changes.iter().filter_map(|change| change.due_at);
        own.into_iter().chain(lists).chain(changes).min()
    }
}

/// What the reading of a list has found.
pub(crate) struct Reported {
    pub(crate) left_out: Vec<(Box<str>, crate::LeftOut)>,
    pub(crate) differences: Vec<Difference>,
    /// The list has changed while it was read.
    pub(crate) is_outdated: bool,
    /// The pins have changed while it was read.
    pub(crate) has_former_pins: bool,
}

/// The list of which this notification reports changes.
pub(crate) fn changed_list(method: &Method) -> Option<Listed> {
    Listed::ALL.into_iter().find(|listed| listed.changed() == *method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_changes_are_told_once_until_the_client_asks_again() {
        let mut child = Child::new();
        assert!(child.note_changed(0, Listed::Tool));
        assert!((1..5_000).all(|now| !child.note_changed(now, Listed::Tool)));
        assert_eq!(child.deadline(false), None);
        child.note_listed(Listed::Tool);
        assert!(child.note_changed(5_000, Listed::Tool));
        child.note_listed(Listed::Tool);
        assert!(!child.note_changed(5_010, Listed::Tool), "an interval is not over");
        assert_eq!(child.deadline(false), Some(6_000));
        assert!(!child.take_due_change(5_999, Listed::Tool));
        assert!(child.take_due_change(6_000, Listed::Tool));
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_bound() {
        let mut child = Child::new();
        let mut waits = Vec::new();
        for _ in 0..8 {
            child.note_down(0, &Failure::new("x"), false);
            let State::Down { again_at } = child.state else { panic!("{:?}", child.state) };
            waits.push(again_at);
        }
        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
    }
}
