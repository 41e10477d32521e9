//! What processes cost, read from `/proc`: their CPU time and their memory, children included.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// The processes of one server: those it was started with, and all that descend from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes {
    roots: Vec<u32>,
    /// Descendants that are not counted, and neither is what descends from them.
    without: Vec<u32>,
    /// No descendants count.
    alone: bool,
}

/// What they have cost so far, or hold now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Time on a CPU, in user and kernel mode.
    pub(crate) cpu: Duration,
    /// Resident memory; pages that processes share count for each.
    pub(crate) rss_bytes: u64,
}

impl Processes {
    pub(crate) fn of(roots: impl IntoIterator<Item = u32>) -> Self {
        Self { roots: roots.into_iter().collect(), ..Self::default() }
    }

    /// Leaves out a process and all that descend from it.
    pub(crate) fn without(&mut self, pid: u32) {
        self.without.push(pid);
    }

    /// Leaves out all that descend from them.
    pub(crate) fn without_children(&mut self) {
        self.alone = true;
    }

    /// Is there any?
    pub(crate) fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// What they cost now. Children that have ended count with the one that waited for them.
    pub(crate) fn cost(&self) -> anyhow::Result<Cost> {
        let mut total = Cost::default();
        if self.is_empty() {
            return Ok(total);
        }
        for pid in self.all()? {
            // One that ends meanwhile costs nothing more.
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

/// What a process costs, and what children cost it that have ended.
fn cost_of(pid: u32) -> anyhow::Result<(Cost, Duration)> {
    let fields = stat(pid)?;
    // In hundredths of a second on every Linux.
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

/// The time that the scheduler counted for each live thread, in nanoseconds. Threads that
/// ended are not in it; where there were any, the coarser account of the process is larger.
fn threads(pid: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let nanos = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// The fields of `/proc/PID/stat` after the name, which may hold spaces itself.
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
        // So many rounds take more than 30 ms of any core, however busy the machine is.
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
