//! The settings of the audit log, and why it cannot be started.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use telemetry::{OtlpError, OtlpSettings};

/// The least value of `file_bytes_max`: below it, files would be rotated within seconds.
const FILE_BYTES_MIN: u64 = 4 << 10;

/// The audit log of a node.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where records are written.
    pub to: To,
    /// With `file`: the file.
    pub file: PathBuf,
    /// With `file`: the size at which the file is renamed to `FILE.1`, and a new one is begun. 0 if
    /// another program rotates it.
    pub file_bytes_max: u64,
    /// With `file`: most renamed files that are kept; the oldest one is removed.
    pub files_max: u32,
    /// With `file`: whether each batch is on the disk (fdatasync) before its calls are dispatched.
    pub sync: bool,
    /// With `syslog`: the datagram socket.
    pub syslog: PathBuf,
    /// With `otlp`: the collector, as `[otlp]` names it.
    #[serde(skip)]
    pub collector: OtlpSettings,
    /// What happens to a call whose record cannot be written.
    pub when_full: WhenFull,
    /// How long a call waits until its record is written, in milliseconds. Then it is refused with
    /// `block`, and goes on with `drop`.
    pub hold_ms: u64,
    /// Most bytes of records of one tenant that wait to be written. At the bound `when_full` decides
    /// about this tenant's calls.
    pub tenant_queue_bytes_max: usize,
    /// Most such records of one tenant.
    pub tenant_queue_records_max: usize,
    /// Most bytes of records of all tenants that wait to be written.
    pub queue_bytes_max: usize,
    /// Most such records of all tenants.
    pub queue_records_max: usize,
    /// Most records of refusals, and most of sign-in failures, of one tenant each second. Further ones
    /// are counted, and their number is a record.
    pub refusals_per_sec: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            to: To::Off,
            file: PathBuf::new(),
            file_bytes_max: 100 << 20,
            files_max: 10,
            sync: false,
            syslog: PathBuf::from("/dev/log"),
            collector: OtlpSettings::default(),
            when_full: WhenFull::Block,
            hold_ms: 2_000,
            tenant_queue_bytes_max: 2 << 20,
            tenant_queue_records_max: 8_192,
            queue_bytes_max: 32 << 20,
            queue_records_max: 131_072,
            refusals_per_sec: 100,
        }
    }
}

/// Where audit records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum To {
    /// Nowhere.
    Off,
    /// To a file.
    File,
    /// To standard output.
    Stdout,
    /// To the local syslog.
    Syslog,
    /// To the collector of `[otlp]`, as log records.
    Otlp,
}

/// What happens to a call whose record cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// It waits, and is then refused.
    Block,
    /// It goes on without a record.
    Drop,
}

impl Settings {
    /// Everything that is wrong with the settings.
    pub fn problems(&self) -> Vec<Error> {
        if self.to == To::Off {
            return Vec::new();
        }
        let mut wrong = Vec::new();
        if self.to == To::File && self.file.as_os_str().is_empty() {
            wrong.push(Error::NoFile);
        }
        if self.to == To::File && self.file_bytes_max > 0 {
            if self.file_bytes_max < FILE_BYTES_MIN {
                wrong.push(Error::FileTooSmall { bytes: self.file_bytes_max });
            }
            if self.files_max == 0 {
                wrong.push(Error::Zero { setting: "audit.files_max" });
            }
        }
        if self.sync && self.to != To::File {
            wrong.push(Error::SyncOfOther);
        }
        let bounds = [
            ("audit.tenant_queue_bytes_max", self.tenant_queue_bytes_max),
            ("audit.tenant_queue_records_max", self.tenant_queue_records_max),
            ("audit.queue_bytes_max", self.queue_bytes_max),
            ("audit.queue_records_max", self.queue_records_max),
        ];
        let none = bounds.into_iter().filter(|(_, bound)| *bound == 0);
        wrong.extend(none.map(|(setting, _)| Error::Zero { setting }));
        wrong
    }
}

/// Why the audit log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not named.
    #[error(
        "`audit.to` is \"file\", and `audit.file` is missing; write the path of the file, as in \
         \"/var/log/roundhouse/audit.jsonl\""
    )]
    NoFile,
    /// The file would be rotated too often.
    #[error("`audit.file_bytes_max` is {bytes}; write at least \"4K\", or 0 for no rotation")]
    FileTooSmall {
        /// The value.
        bytes: u64,
    },
    /// A bound at which nothing could be written.
    #[error("`{setting}` is 0, so no record could be kept; write at least 1")]
    Zero {
        /// The setting.
        setting: &'static str,
    },
    /// Only a file can be synchronised.
    #[error(
        "`audit.sync` is true, which only a file can be; write `audit.to = \"file\"`, or remove it"
    )]
    SyncOfOther,
    /// There is no collector.
    #[error(
        "`audit.to` is \"otlp\", and there is no `otlp.endpoint`; write the URL of the collector, as in \
         \"http://127.0.0.1:4318\""
    )]
    NoCollector,
    /// Nothing can be sent to the collector.
    #[error("`audit.to` is \"otlp\", which cannot be sent to")]
    Collector(#[from] OtlpError),
    /// The destination cannot be opened.
    #[error("`{setting}` ({place}) cannot be opened for audit records; {remedy}")]
    Open {
        /// The setting.
        setting: &'static str,
        /// The path.
        place: String,
        /// What to do.
        remedy: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The system refused the thread that writes.
    #[error("the system refused a thread for the audit log")]
    Thread(#[source] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(settings: Settings, keys: &[&str]) {
        let wrong: Vec<_> = settings.problems().iter().map(ToString::to_string).collect();
        assert_eq!(wrong.len(), keys.len(), "{wrong:?}");
        for (wrong, key) in wrong.iter().zip(keys) {
            assert!(wrong.contains(key) && wrong.contains("write"), "{wrong}");
        }
    }

    #[test]
    fn a_setting_that_cannot_work_is_named_with_its_remedy() {
        let file = Settings { to: To::File, file: "/x".into(), ..Settings::default() };
        check(Settings::default(), &[]);
        check(file.clone(), &[]);
        check(Settings { to: To::File, ..Settings::default() }, &["`audit.file` is missing"]);
        check(Settings { file_bytes_max: 100, ..file.clone() }, &["`audit.file_bytes_max` is 100"]);
        check(Settings { file_bytes_max: 0, files_max: 0, ..file.clone() }, &[]);
        check(Settings { files_max: 0, ..file.clone() }, &["`audit.files_max` is 0"]);
        check(Settings { queue_records_max: 0, ..file }, &["`audit.queue_records_max` is 0"]);
        let stdout = Settings { to: To::Stdout, sync: true, ..Settings::default() };
        check(stdout, &["`audit.sync`"]);
    }
}
