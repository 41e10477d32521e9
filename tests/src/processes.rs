//! Finds running processes by a mark in their environment.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The variable that carries the mark.
pub const VARIABLE: &str = "STORY_MARK";

/// A mark that no other test uses.
pub fn mark() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The processes with a mark, as `pid name`, except `but`.
pub fn marked(mark: &str, but: Option<u32>) -> Vec<String> {
    let wanted = format!("{VARIABLE}={mark}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that ends during this check has no environment any more.
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        if Some(pid) != but && variables.any(|variable| variable == wanted.as_bytes()) {
            let name = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.push(format!("{pid} {}", name.replace('\0', " ")));
        }
    }
    found
}

/// Waits until no process with a mark is left, except `but`.
pub async fn all_gone(mark: &str, but: Option<u32>, within: Duration) -> Result<()> {
    let until = Instant::now() + within;
    loop {
        let left = marked(mark, but);
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("still running after {within:?}:\n{}", left.join("\n"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a process that was killed has ended, with all of its threads: then its connections are closed. Its parent
/// may still have to collect it.
pub async fn ended(pid: u32, within: Duration) -> Result<()> {
    let until = Instant::now() + within;
    while !has_ended(pid) {
        if Instant::now() > until {
            bail!("process {pid} still runs after {within:?}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

fn has_ended(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    threads <= 1 && state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// The resident memory of a process, in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    memory(pid, "VmRSS:")
}

/// The most memory that was resident at any time since the start of a process, in bytes.
pub fn resident_most(pid: u32) -> Result<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, key: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    match kib {
        Some(kib) => Ok(kib << 10),
        None => bail!("no {key} of {pid}"),
    }
}
