//! How long a thread has been ready to run without running, as the kernel counts it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::str;
use std::time::Duration;

/// How long this thread has been ready to run without running, by the kernel. It is that of the thread that opens it.
pub(crate) struct ReadyTime(Option<File>);

impl ReadyTime {
    /// That of the calling thread. Without `/proc`, it is not known.
    pub(crate) fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// The time until now. `None`: the kernel does not tell.
    pub(crate) fn read(&self) -> Option<Duration> {
        let mut line = [0; 80];
        let length = self.0.as_ref()?.read_at(&mut line, 0).ok()?;
        parse(line.get(..length)?)
    }
}

/// The second of three numbers: nanoseconds on a processor, nanoseconds of waiting for one, and how often it got one.
fn parse(line: &[u8]) -> Option<Duration> {
    let line = str::from_utf8(line).ok()?;
    let ready = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_of_the_line_is_read() {
        assert_eq!(parse(b"350970424 50941 17\n"), Some(Duration::from_nanos(50_941)));
        for other in ["", "1", "1 x 2", "1 -1 2", "\u{fffd}"] {
            assert_eq!(parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(parse(&[b'1', b' ', 0xff]), None);
    }

    #[test]
    fn the_time_is_that_of_the_thread() {
        let ready = ReadyTime::of_this_thread();
        // A kernel may have no such statistics.
        let Some(before) = ready.read() else { return };
        assert!(before <= Duration::from_secs(3_600));
        assert!(ready.read().is_some_and(|after| after >= before));
    }
}
