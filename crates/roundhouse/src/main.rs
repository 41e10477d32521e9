//! The program.

use std::io::Write as _;
use std::process::ExitCode;

use roundhouse::cli::Cli;
use roundhouse::{private_environment, program};

/// glibc does not return memory that ended sessions freed between the few allocations that stay:
/// after ten thousand sessions a node stayed at six times its memory. This allocator returns it
/// within seconds, by threads of its own, which `main` starts: a guard must have a single thread.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    roundhouse::guard::enter();
    let outcome = match private_environment::enter() {
        Ok(()) => {
            start_allocator_thread();
            program::run(Cli::of_process().command())
        }
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If no process reads standard error, only the exit code reports the failure.
            let _ = writeln!(std::io::stderr(), "roundhouse: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the allocator's thread, which returns unused memory. A guard has no such thread: a process
/// with several threads cannot enter a user namespace.
fn start_allocator_thread() {
    #[cfg(feature = "jemalloc")]
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        // The allocator then returns memory only when a thread uses it.
        let _ = writeln!(std::io::stderr(), "roundhouse: the allocator has no thread: {error}");
    }
}
