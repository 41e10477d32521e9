//! Where records are written.
//!
//! A further destination is a variant of [`Sink`]: it takes whole lines, may wait in [`Sink::write`] and
//! [`Sink::sync`], and returns how many bytes it has taken. What an error leaves is written again. Lines
//! are written when [`Sink::sync`] has succeeded. Only the writer's thread calls these, unless
//! [`Sink::takes_at_once`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::file::AuditFile;
use crate::otlp_sink::OtlpSink;
use crate::{Error, Settings, To};

/// The facility 13 (log audit) and the severity 6 (informational) of RFC 5424.
const PRIORITY: &str = "<110>";

/// How long one record may wait for the syslog. Then the write is repeated.
const SYSLOG_TIMEOUT: Duration = Duration::from_secs(1);

/// A destination.
pub(crate) enum Sink {
    File(AuditFile),
    Stdout(File),
    Syslog(Syslog),
    Otlp(Box<OtlpSink>),
}

impl Sink {
    /// Opens the destination of these settings.
    pub(crate) fn open(settings: &Settings, node: &str) -> Result<Self, Error> {
        match settings.to {
            To::File => {
                let failed = |source| Error::Open {
                    setting: "audit.file",
                    place: settings.file.display().to_string(),
                    remedy: "create its folder, and let the node's user write to it",
                    source,
                };
                Ok(Self::File(AuditFile::open(settings).map_err(failed)?))
            }
            To::Stdout | To::Off => {
                let failed = |source| Error::Open {
                    setting: "audit.to",
                    place: "stdout".into(),
                    remedy: "start the node with a standard output, or write to a file",
                    source,
                };
                let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
                Ok(Self::Stdout(stdout.into()))
            }
            To::Syslog => {
                let failed = |source| Error::Open {
                    setting: "audit.syslog",
                    place: settings.syslog.display().to_string(),
                    remedy: "start the syslog of this machine, or write the path of its socket",
                    source,
                };
                let path = settings.syslog.clone();
                let socket = connect(&path).map_err(failed)?;
                Ok(Self::Syslog(Syslog { path, socket, datagram: Vec::new() }))
            }
            To::Otlp => Ok(Self::Otlp(Box::new(OtlpSink::new(&settings.collector, node)?))),
        }
    }

    /// Prepares the write of so many bytes of whole lines.
    pub(crate) fn prepare(&mut self, bytes: usize) -> io::Result<()> {
        match self {
            Self::File(file) => file.prepare(bytes),
            Self::Stdout(_) | Self::Syslog(_) | Self::Otlp(_) => Ok(()),
        }
    }

    /// Whether a write of so many bytes needs no preparation, does not wait, and is all that there is to do.
    pub(crate) fn takes_at_once(&self, bytes: usize, now: Instant) -> bool {
        match self {
            Self::File(file) => file.takes_at_once(bytes, now),
            Self::Stdout(_) | Self::Syslog(_) | Self::Otlp(_) => false,
        }
    }

    /// Writes a beginning of these lines, and returns its length.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::File(file) => file.write(lines)?,
            Self::Stdout(stdout) => stdout.write(lines)?,
            Self::Syslog(syslog) => syslog.write(lines)?,
            Self::Otlp(otlp) => otlp.write(lines)?,
        };
        match written {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }

    /// Waits until everything is on the disk, if the settings ask for it, or until the collector has it.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.sync(),
            Self::Otlp(otlp) => otlp.flush(),
            Self::Stdout(_) | Self::Syslog(_) => Ok(()),
        }
    }

    /// Opens the destination anew after an error. `is_within_line`: a line is written in part, and its
    /// rest must follow it.
    pub(crate) fn reopen(&mut self, is_within_line: bool) -> io::Result<()> {
        match self {
            Self::File(file) if !is_within_line => file.reopen_if_moved(),
            Self::Syslog(syslog) => {
                syslog.socket = connect(&syslog.path)?;
                Ok(())
            }
            Self::File(_) | Self::Stdout(_) | Self::Otlp(_) => Ok(()),
        }
    }
}

fn connect(path: &PathBuf) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_write_timeout(Some(SYSLOG_TIMEOUT))?;
    Ok(socket)
}

/// The datagram socket of a local syslog.
pub(crate) struct Syslog {
    path: PathBuf,
    socket: UnixDatagram,
    datagram: Vec<u8>,
}

impl Syslog {
    /// Sends each line as one datagram, until one is refused.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            self.datagram.clear();
            write!(self.datagram, "{PRIORITY}roundhouse[{}]: ", std::process::id())?;
            self.datagram.extend_from_slice(line.trim_ascii_end());
            match self.socket.send(&self.datagram) {
                Ok(_) => written += line.len(),
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_is_one_datagram_of_the_audit_facility() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let settings = Settings { to: To::Syslog, syslog: path, ..Settings::default() };
        let mut sink = Sink::open(&settings, "n1").unwrap();
        assert_eq!(sink.write(b"{\"a\":1}\n{\"b\":2}\n").unwrap(), 16);
        let mut buffer = [0; 100];
        for record in ["{\"a\":1}", "{\"b\":2}"] {
            let length = receiver.recv(&mut buffer).unwrap();
            let datagram = std::str::from_utf8(&buffer[..length]).unwrap();
            assert_eq!(datagram, format!("<110>roundhouse[{}]: {record}", std::process::id()));
        }
    }

    #[test]
    fn a_destination_that_is_not_there_is_named_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing/log");
        for (to, key) in [(To::File, "`audit.file`"), (To::Syslog, "`audit.syslog`")] {
            let (file, syslog) = (missing.clone(), missing.clone());
            let settings = Settings { to, file, syslog, ..Settings::default() };
            let error = Sink::open(&settings, "n1").err().unwrap().to_string();
            assert!(error.starts_with(key) && error.contains("missing/log"), "{error}");
        }
    }
}
