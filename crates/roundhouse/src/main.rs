//! The program.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use roundhouse::cli::Cli;
use roundhouse::program;

/// glibc keeps what ended sessions leave free between the few things that live on: after
/// ten thousand of them a node stayed at six times its memory. This one gives it back
/// within seconds.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    roundhouse::guard::enter();
    match program::run(Cli::parse().command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If no process reads standard error, the exit code has to do.
            let _ = writeln!(std::io::stderr(), "roundhouse: {error:#}");
            ExitCode::FAILURE
        }
    }
}
