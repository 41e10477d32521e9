//! The program.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use roundhouse::cli::Cli;
use roundhouse::{private_environment, program};

/// glibc does not return memory that ended sessions freed between the few allocations that stay:
/// after ten thousand sessions a node stayed at six times its memory. This allocator returns it
/// within seconds.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    roundhouse::guard::enter();
    let outcome = match private_environment::enter() {
        Ok(()) => program::run(Cli::parse().command()),
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
