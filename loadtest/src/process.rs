//! What processes cost, read from `/proc`: their CPU time and their memory, children included.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// The processes of one server: those it was started with, and all that descend from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes(pub(crate) Vec<u32>);

/// What they have cost so far, or hold now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Time on a CPU, in user and kernel mode.
    pub(crate) cpu: Duration,
    /// Resident memory; pages that processes share count for each.
    pub(crate) rss_bytes: u64,
}

impl Processes {
    /// What they cost now. Children that have ended count with the one that waited for them.
    pub(crate) fn cost(&self) -> anyhow::Result<Cost> {
        let mut total = Cost::default();
        for pid in self.all()? {
            // One that ends meanwhile costs nothing more.
            let Ok(cost) = cost_of(pid) else { continue };
            total.cpu += cost.cpu;
            total.rss_bytes += cost.rss_bytes;
        }
        Ok(total)
    }

    fn all(&self) -> anyhow::Result<BTreeSet<u32>> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(fields) = stat(pid) else { continue };
            if let Some(parent) = fields.get(1).and_then(|parent| parent.parse().ok()) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut all = BTreeSet::new();
        let mut next = self.0.clone();
        while let Some(pid) = next.pop() {
            if all.insert(pid) {
                next.extend(children.get(&pid).into_iter().flatten());
            }
        }
        Ok(all)
    }
}

fn cost_of(pid: u32) -> anyhow::Result<Cost> {
    let fields = stat(pid)?;
    // utime, stime, cutime and cstime, in hundredths of a second on every Linux.
    let ticks: u64 = fields.iter().skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum();
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: u64 = statm.split(' ').nth(1).context("statm has no second field")?.parse()?;
    let rss_bytes = pages * rustix::param::page_size() as u64;
    Ok(Cost { cpu: precise(pid).unwrap_or(Duration::from_millis(ticks * 10)), rss_bytes })
}

/// The time that the scheduler counted for each live thread, in nanoseconds. Threads that
/// ended are not in it, so it serves for servers that keep theirs.
fn precise(pid: u32) -> Option<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        nanos += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}

/// The fields of `/proc/PID/stat` after the name, which may hold spaces itself.
fn stat(pid: u32) -> anyhow::Result<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("stat has no name")?;
    Ok(fields.split(' ').map(str::to_owned).collect())
}
