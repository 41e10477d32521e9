//! Ports that no other test process of this machine uses, of this test run or of another.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The first port: below the range from which the kernel assigns ports, so that a port is still free when a
/// process is restarted.
const FIRST: u16 = 10_000;

/// The ports of one range. A process that needs more takes another range.
const RANGE: u16 = 37;

/// The number of ranges. Redis uses each port plus 10,000 as well, and those are below the kernel's too.
const RANGES: u16 = 300;

/// The range of this process, and the locks on all ranges that it took, which end with the process.
static TAKEN: Mutex<(Range<u16>, Vec<File>)> = Mutex::new((0..0, Vec::new()));

/// A port of loopback on which nothing listens, nor on the port that is 10,000 higher. `None` if other
/// processes have all ranges, or the folder of temporary files cannot be written.
pub(crate) fn free_port() -> Option<u16> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (range, locks) = &mut *taken;
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    loop {
        if let Some(port) = range.find(|port| is_free(*port) && is_free(*port + 10_000)) {
            return Some(port);
        }
        let (lock, next) = free_range()?;
        locks.push(lock);
        *range = next;
    }
}

/// A range that no process has, with the lock on it. Processes begin at different ranges, so that ports of a
/// process that has just ended are not used again at once.
fn free_range() -> Option<(File, Range<u16>)> {
    let folder = std::env::temp_dir().join("roundhouse-test-ports");
    std::fs::create_dir_all(&folder).ok()?;
    let begin = std::process::id() % u32::from(RANGES);
    (0..u32::from(RANGES)).find_map(|step| {
        let number = (begin + step) % u32::from(RANGES);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = options.open(folder.join(number.to_string())).ok()?;
        file.try_lock().ok()?;
        let first = FIRST + RANGE * u16::try_from(number).ok()?;
        Some((file, first..first + RANGE))
    })
}
