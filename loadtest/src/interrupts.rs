//! Timer interrupts at short intervals, for measurements of programs that share a core.
//!
//! The kernel changes between programs that are always ready to run when a timer interrupts them, which is
//! 250 times a second with the usual settings (`CONFIG_HZ`). Three nodes that share a core then wait 8 ms for each
//! other, and nodes with cores of their own do not. A process with a real-time priority that wakes every 0.25 ms
//! has the kernel choose again each time, and takes about 1 % of the core.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::cores;

/// The time between two interrupts.
const INTERVAL: Duration = Duration::from_micros(250);

/// The real-time priority, above that of all programs without one.
const PRIORITY: &str = "50";

/// Interrupts of the servers' core and of the load's, until this is dropped.
pub(crate) struct Interrupts(Vec<Child>);

impl Interrupts {
    /// Starts a process for each core. It fails without the right to a real-time priority.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let this = std::env::current_exe()?;
        let mut started = Self(Vec::new());
        for mut command in cores::on_each("chrt") {
            command.args(["--fifo", PRIORITY]).arg(&this).arg("interrupt");
            // Its standard error has the reason of a refusal.
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = command.spawn().context("chrt")?;
            let output = process.stdout.take();
            started.0.push(process);
            let mut line = String::new();
            BufReader::new(output.context("no output")?).read_line(&mut line)?;
            ensure!(!line.is_empty(), "`chrt --fifo` did not start a program");
        }
        Ok(started)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for process in &mut self.0 {
            drop(process.stdin.take());
            let _ended = process.wait();
        }
    }
}

/// The process of one core: wakes again and again, until its standard input closes.
pub(crate) fn interrupt() -> anyhow::Result<()> {
    std::thread::spawn(|| {
        let _closed = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    writeln!(io::stdout(), "interrupting")?;
    loop {
        std::thread::sleep(INTERVAL);
    }
}
