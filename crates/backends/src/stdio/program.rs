//! What all processes of one backend share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use budget::{Budget, Share};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::children::Children;
use super::in_use::{Entry, InUse};
use super::reason;
use super::settings::StdioSettings;
use super::waiting::Waiting;
use crate::sandbox::Protections;
use crate::{EventSender, LinkEvent};

/// The state that all processes of a backend share.
pub(super) struct Program {
    /// The tenant, as far as the name of the backend has it.
    pub(super) tenant: Arc<str>,
    /// The name of the backend in logs.
    pub(super) name: String,
    /// The command in logs.
    pub(super) command: String,
    pub(super) settings: StdioSettings,
    /// What the machine grants to the user of the processes.
    pub(super) protections: Protections,
    pub(super) children: Children,
    pub(super) shares: StdioShares,
    /// The children that wait for a session.
    pub(super) waiting: Waiting,
    /// The sessions that have a child.
    pub(super) in_use: InUse,
    /// Wakes the task that starts spare children.
    pub(super) spares_wanted: Notify,
    /// Whether that task was started.
    keeps_spares: AtomicBool,
    /// Cancelled when no further session gets the backend.
    pub(super) retired: CancellationToken,
}

impl Program {
    /// `name` is the name of the backend in logs: the tenant, a slash, and the backend's own.
    pub(super) fn new(
        name: String,
        settings: StdioSettings,
        protections: Protections,
        children: Children,
        shares: StdioShares,
    ) -> Self {
        Self {
            tenant: name.split_once('/').map_or("", |(tenant, _)| tenant).into(),
            name,
            command: reason::command_for_log(&settings),
            settings,
            protections,
            children,
            shares,
            waiting: Waiting::default(),
            in_use: InUse::default(),
            spares_wanted: Notify::new(),
            keeps_spares: AtomicBool::new(false),
            retired: CancellationToken::new(),
        }
    }

    /// Whether the caller has to start the task that starts spare children: true once.
    pub(super) fn begins_to_keep_spares(&self) -> bool {
        !self.keeps_spares.swap(true, Ordering::AcqRel)
    }

    /// Ends the children that wait, and lets no further one wait. Those that have a session and keep
    /// nothing end when they are idle.
    pub(super) fn retire(&self) {
        self.retired.cancel();
        self.waiting.close();
        if self.settings.stateless {
            self.in_use.ask_to_leave();
        }
    }

    /// Adds a session that has a child. One that comes after the retirement is asked to leave, too.
    pub(super) fn add_in_use(&self, session: EventSender) -> Entry<'_> {
        let entry = self.in_use.add(session.clone());
        if self.settings.stateless && self.retired.is_cancelled() {
            let _ = session.try_send(LinkEvent::Retired);
        }
        entry
    }

    /// As the field, for logs.
    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }
}

/// What a tenant may take of the node for its processes.
#[derive(Clone, Debug)]
pub struct StdioShares {
    /// The processes. The link of a further one is down at once.
    pub children: Share,
    /// The bytes of lines that a process has written in part. While the share is exceeded, nothing
    /// more is read from the process; after 5 s the link ends.
    pub line_bytes: Share,
}

impl StdioShares {
    /// Shares without a bound.
    pub fn unlimited() -> Self {
        let share = Budget::unlimited().unnamed_share("");
        Self { children: share.clone(), line_bytes: share }
    }
}
