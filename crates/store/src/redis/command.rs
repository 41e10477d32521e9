//! One command, and what is known of it before it is sent.

use std::io::Write as _;

use bytes::Bytes;
use redis::{Cmd, RedisWrite as _};

use super::keys::slot;
use super::layout::{ENTRY_HEAD_BYTES, entry_head};
use super::script::ScriptName;
use crate::PrimaryId;
use crate::metrics::Operation;

/// A command with more bytes is long. It is copied three times before the kernel has it: into the command, the
/// text of the write and the buffer of the connection. With so many bytes that takes about 30 µs.
const LONG_BYTES: usize = 64 << 10;

/// One command and the slot of its keys.
pub(super) struct RedisCommand {
    pub(super) slot: u16,
    /// The command without [`RedisCommand::entries`].
    pub(super) cmd: Cmd,
    /// Its last arguments, which are copied when it is sent.
    pub(super) entries: LogEntries,
    /// The label of the command in metrics.
    pub(super) operation: Operation,
    /// The approximate length of the command.
    pub(super) bytes: usize,
    pub(super) primary: PrimaryCondition,
}

/// Entries of a log with successive numbers.
#[derive(Default)]
pub(super) struct LogEntries {
    pub(super) first: u64,
    pub(super) payloads: Vec<Bytes>,
}

/// On which primary a command may be executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PrimaryCondition {
    /// On any.
    Any,
    /// Only on this primary, from which the caller read the state of the session. `None` stands
    /// for any primary that the caller acknowledged.
    At(Option<PrimaryId>),
}

impl RedisCommand {
    /// A script on these keys, which must all be in one slot.
    pub(super) fn script<K: AsRef<str>>(name: ScriptName, keys: &[K]) -> Self {
        let key = keys.first().map_or("", K::as_ref);
        Self { operation: name.into(), ..Self::new(key, name.on(keys)) }
    }

    /// A plain command. It counts as a read unless the caller sets another operation.
    pub(super) fn new(key: &str, cmd: Cmd) -> Self {
        let (operation, primary) = (Operation::Read, PrimaryCondition::Any);
        let entries = LogEntries::default();
        Self { slot: slot(key.as_bytes()), cmd, entries, operation, bytes: 0, primary }
    }

    pub(super) fn arg(mut self, arg: impl redis::ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// Adds an argument that can be long.
    pub(super) fn long_arg(mut self, arg: &[u8]) -> Self {
        self.bytes += arg.len();
        self.arg(arg)
    }

    pub(super) fn only_on(self, primary: PrimaryCondition) -> Self {
        Self { primary, ..self }
    }

    /// Whether it takes long to copy. Then it is sent from the runtime of the connections, in turns.
    pub(super) fn is_long(&self) -> bool {
        self.bytes > LONG_BYTES
    }

    /// Its bytes if it is long, or 0.
    pub(super) fn long_bytes(&self) -> usize {
        if self.is_long() { self.bytes } else { 0 }
    }

    /// The whole command.
    pub(super) fn to_cmd(&self) -> Cmd {
        let mut cmd = self.cmd.clone();
        let LogEntries { first, payloads } = &self.entries;
        let lengths = payloads.iter().map(|payload| ENTRY_HEAD_BYTES + payload.len());
        cmd.reserve_space_for_args(lengths);
        for (number, payload) in (*first..).zip(payloads) {
            let mut arg = cmd.writer_for_next_arg();
            for part in [&entry_head(number)[..], payload] {
                arg.write_all(part).expect("a buffer in memory takes all");
            }
        }
        cmd
    }
}
