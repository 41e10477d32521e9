//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use front::AdminAddress;

/// Hosts MCP servers over Streamable HTTP, with sessions and streams that resume.
///
/// Without arguments it serves a built-in demo at http://127.0.0.1:8080/demo/mcp, where it was
/// built with one.
#[derive(Debug, Parser)]
#[command(name = "roundhouse", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// The command; `serve` if there is none.
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

impl Cli {
    /// The given command, or the default one.
    pub fn command(self) -> Command {
        self.command.unwrap_or(Command::Serve(self.serve))
    }
}

/// A command of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve every tenant over HTTP until asked to stop.
    Serve(Serve),
    /// Serve one tenant over standard input and output.
    Stdio(Stdio),
    /// Check a settings file: print what it configures and what a node warns of, or every problem
    /// in it. The exit code is 1 if a node with it does not start.
    Check(Check),
}

/// `roundhouse serve`.
#[derive(Debug, Default, Args)]
pub struct Serve {
    /// The settings file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the listener for clients; port 0 takes any free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Address of the listener for operators; port 0 takes any free one, and `unix:/PATH` is a
    /// Unix socket [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<AdminAddress>,
    /// A server to host as the tenant `demo`: a program that speaks MCP over its standard
    /// input and output. It gets the environment of this process.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `roundhouse stdio`.
#[derive(Debug, Args)]
pub struct Stdio {
    /// The tenant to serve.
    #[arg(long, value_name = "NAME")]
    pub tenant: String,
    /// The settings file (TOML); without one, the built-in demo is the only tenant.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `roundhouse check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The settings file (TOML).
    pub config: PathBuf,
    /// Exit with 1 also if there are only warnings.
    #[arg(long)]
    pub strict: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(words: &[&str]) -> Serve {
        let words = ["roundhouse"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command() {
            Command::Serve(serve) => serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn nothing_typed_means_serve() {
        assert!(serve(&[]).command.is_empty());
        assert_eq!(serve(&["--listen", "127.0.0.1:0"]).listen.unwrap().port(), 0);
    }

    #[test]
    fn what_follows_the_dashes_is_the_hosted_command_whatever_it_looks_like() {
        let serve = serve(&["serve", "--admin", "[::1]:1", "--", "npx", "-y", "--listen", "check"]);
        assert_eq!(serve.command, ["npx", "-y", "--listen", "check"]);
        assert_eq!(serve.listen, None);
    }
}
