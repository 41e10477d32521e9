//! Timer interrupts at short intervals, for measurements of programs that share a core.
//!
//! The kernel changes between programs that are always ready to run when a timer interrupts them, which is
//! 250 times a second with the usual settings (`CONFIG_HZ`). Three nodes that share a core then wait 8 ms for each
//! other, and nodes with cores of their own do not. A process with a real-time priority that wakes every 0.25 ms
//! has the kernel choose again each time, and takes about 1 % of the core. It also notes when its core is
//! [slow](crate::core_speed).

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::core_speed::{CoreSpeed, SlowTimes, since_boot};
use crate::cores;

/// The time between two interrupts.
const INTERVAL: Duration = Duration::from_micros(250);

/// The speed of the core is measured after so many, which takes less than 1 % of the core.
const MEASURED_AFTER: u32 = 20;

/// The longest time between two measurements: each interrupt is a little late, and the work takes longer on a slow core.
const MEASURED_WITHIN: Duration = Duration::from_millis(10);

/// The real-time priority, above that of all programs without one.
const PRIORITY: &str = "50";

/// Interrupts of the servers' core and of the load's, until this is dropped.
#[derive(Default)]
pub(crate) struct Interrupts(Vec<Interrupter>);

/// The process for one core.
struct Interrupter {
    process: Child,
    /// Until it is dropped, the process runs.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Interrupts {
    /// Starts a process for each core. It fails without the right to a real-time priority.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let this = std::env::current_exe()?;
        let mut started = Self::default();
        for mut command in cores::on_each("chrt") {
            command.args(["--fifo", PRIORITY]).arg(&this).arg("interrupt");
            // Its standard error has the reason of a refusal.
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = command.spawn().context("chrt")?;
            let (input, output) = (process.stdin.take(), process.stdout.take());
            let output = BufReader::new(output.context("no output")?);
            let mut interrupter = Interrupter { process, input, output };
            let begins = interrupter.line()?;
            started.0.push(interrupter);
            ensure!(!begins.is_empty(), "`chrt --fifo` did not start a program");
        }
        Ok(started)
    }

    /// When a core was slow since the last call.
    pub(crate) fn take_slow_times(&mut self) -> anyhow::Result<SlowTimes> {
        let mut slow = SlowTimes::default();
        // The last time until now is measured as well.
        std::thread::sleep(MEASURED_WITHIN);
        for interrupter in &mut self.0 {
            slow.add_core(&interrupter.ask()?, MEASURED_WITHIN);
        }
        Ok(slow)
    }
}

impl Interrupter {
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    /// Asks when its core was found to be slow.
    fn ask(&mut self) -> anyhow::Result<Vec<Duration>> {
        self.input.as_mut().context("no input")?.write_all(b"\n")?;
        let line = self.line()?;
        ensure!(!line.is_empty(), "a process that interrupts has ended");
        let micros =
            line.split_whitespace().map(|micros| micros.parse().map(Duration::from_micros));
        micros.collect::<Result<_, _>>().context("the slow times of a core")
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for interrupter in &mut self.0 {
            interrupter.input = None;
            let _ended = interrupter.process.wait();
        }
    }
}

/// The process of one core: wakes again and again, until its standard input closes. For each line of that it writes a
/// line with the times at which its core was slow, in microseconds.
pub(crate) fn interrupt() -> anyhow::Result<()> {
    let slow = Arc::<Mutex<Vec<Duration>>>::default();
    let found = Arc::clone(&slow);
    std::thread::spawn(move || {
        let answered = answer(&found);
        std::process::exit(i32::from(answered.is_err()));
    });
    writeln!(io::stdout(), "interrupting")?;
    let mut core = CoreSpeed::default();
    loop {
        (0..MEASURED_AFTER).for_each(|_| std::thread::sleep(INTERVAL));
        if core.is_slow() {
            slow.lock().unwrap_or_else(PoisonError::into_inner).push(since_boot());
        }
    }
}

fn answer(found: &Mutex<Vec<Duration>>) -> io::Result<()> {
    for asked in io::stdin().lines() {
        asked?;
        let slow = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        let micros: Vec<_> = slow.iter().map(|time| time.as_micros().to_string()).collect();
        writeln!(io::stdout(), "{}", micros.join(" "))?;
    }
    Ok(())
}
