//! The cost of processes, read from `/proc`: CPU time and memory, including children.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// The processes of one server: the first ones, and all their descendants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes {
    roots: Vec<u32>,
    /// Descendants that are not counted. Their own descendants are not counted either.
    without: Vec<u32>,
    /// Whether no descendants are counted.
    alone: bool,
}

/// The CPU time of processes until now, and their current memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// CPU time in user and kernel mode.
    pub(crate) cpu: Duration,
    /// Resident memory. A page that several processes share is counted for each of them.
    pub(crate) rss_bytes: u64,
}

impl Processes {
    pub(crate) fn of(roots: impl IntoIterator<Item = u32>) -> Self {
        Self { roots: roots.into_iter().collect(), ..Self::default() }
    }

    /// Excludes a process and all its descendants.
    pub(crate) fn without(&mut self, pid: u32) {
        self.without.push(pid);
    }

    /// Excludes all descendants.
    pub(crate) fn without_children(&mut self) {
        self.alone = true;
    }

    /// Whether no process is counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// The cost until now. The CPU time of a child that has ended is part of the process that
    /// waited for it.
    pub(crate) fn cost(&self) -> anyhow::Result<Cost> {
        let mut total = Cost::default();
        if self.is_empty() {
            return Ok(total);
        }
        for pid in self.all()? {
            // The process has ended since the list was read.
            let Ok((cost, children)) = cost_of(pid) else { continue };
            total.cpu += cost.cpu + if self.alone { Duration::ZERO } else { children };
            total.rss_bytes += cost.rss_bytes;
        }
        Ok(total)
    }

    fn all(&self) -> anyhow::Result<BTreeSet<u32>> {
        if self.alone {
            return Ok(self.roots.iter().copied().collect());
        }
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
        let mut next = self.roots.clone();
        while let Some(pid) = next.pop() {
            if !self.without.contains(&pid) && all.insert(pid) {
                next.extend(children.get(&pid).into_iter().flatten());
            }
        }
        Ok(all)
    }
}

/// The cost of a process, and the CPU time of its children that have ended.
fn cost_of(pid: u32) -> anyhow::Result<(Cost, Duration)> {
    let fields = stat(pid)?;
    // The unit is 10 ms on every Linux.
    let ticks = |from: usize| {
        let ticks = fields.iter().skip(from).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        Duration::from_millis(10).saturating_mul(u64::try_into(ticks).unwrap_or(u32::MAX))
    };
    let (own, children) = (ticks(11), ticks(13));
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: u64 = statm.split(' ').nth(1).context("statm has no second field")?.parse()?;
    let rss_bytes = pages * rustix::param::page_size() as u64;
    Ok((Cost { cpu: own.max(threads(pid)), rss_bytes }, children))
}

/// The sum of the scheduler's times of all running threads, in nanoseconds. It does not include
/// threads that have ended; if there were any, the less exact time of the process is larger.
fn threads(pid: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let nanos = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// The fields of `/proc/PID/stat` after the name. The name may contain spaces.
fn stat(pid: u32) -> anyhow::Result<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("stat has no name")?;
    Ok(fields.split(' ').map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_count_with_their_parent_also_when_they_have_ended() {
        // These iterations take more than 30 ms of CPU time on any core, under any load.
        let busy =
            "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done'; echo done; read end";
        let mut parent = Command::new("sh");
        parent.args(["-c", busy]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut parent = parent.spawn().unwrap();
        let mut all = Processes::of([parent.id()]);
        BufReader::new(parent.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let cost = all.cost().unwrap();
        assert!(cost.cpu >= Duration::from_millis(30), "{cost:?}");
        assert!(cost.rss_bytes > 0);
        all.without_children();
        assert!(all.cost().unwrap().cpu < cost.cpu);
        drop(parent.stdin.take());
        parent.wait().unwrap();
    }
}
