//! The program.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use roundhouse::cli::Cli;
use roundhouse::program;

fn main() -> ExitCode {
    roundhouse::guard::enter();
    match program::run(Cli::parse().command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody reads standard error, the exit code has to do.
            let _ = writeln!(std::io::stderr(), "roundhouse: {error:#}");
            ExitCode::FAILURE
        }
    }
}
