//! The command line.

mod operators;
mod revoke;
mod unlink;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use front::AdminAddress;

pub use self::operators::{
    AdminKey, AdminRole, Drain, EndSession, Operator, OperatorCommand, Sessions, Tenants,
};
pub use self::revoke::Revoke;
pub use self::unlink::Unlink;
use crate::settings::addresses;

/// Said at the end of each help text.
const SETTINGS: &str = "Settings: a TOML file, and over it variables named ROUNDHOUSE__SECTION__KEY \
                        with two underscores\nbetween the parts, as in \
                        ROUNDHOUSE__SESSIONS__IDLE_SECS=600. Every key is documented in\n\
                        docs/configuration.md of the source; `roundhouse check FILE` checks a file.";

const EXAMPLES: &str = "Examples:\n  \
    roundhouse serve -- npx -y @modelcontextprotocol/server-everything\n  \
    roundhouse serve --config roundhouse.toml --listen 0.0.0.0:8080\n  \
    roundhouse check --start roundhouse.toml\n";

fn help(examples: &str) -> String {
    format!("Examples:\n{examples}\n{SETTINGS}")
}

/// Hosts MCP servers over Streamable HTTP, with sessions and streams that resume.
///
/// Without arguments it serves a built-in demo at http://127.0.0.1:8080/demo/mcp, where it was
/// built with one.
#[derive(Debug, Parser)]
#[command(
    name = "roundhouse",
    version,
    args_conflicts_with_subcommands = true,
    after_help = format!("{EXAMPLES}\n{SETTINGS}")
)]
pub struct Cli {
    /// The command; `serve` if there is none.
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

impl Cli {
    /// Reads the command line of this process. If it is wrong, says what to write, and ends the
    /// process.
    pub fn of_process() -> Self {
        let words: Vec<OsString> = std::env::args_os().collect();
        Self::try_parse_from(&words).unwrap_or_else(|error| match remedy(&error, &words[1..]) {
            None => error.exit(),
            Some(remedy) => Self::command_line().error(error.kind(), remedy).exit(),
        })
    }

    fn command_line() -> clap::Command {
        <Self as clap::CommandFactory>::command()
    }

    /// The given command, or the default one.
    pub fn command(self) -> Command {
        self.command.unwrap_or(Command::Serve(self.serve))
    }
}

/// What to write instead, for mistakes that the parser explains badly.
fn remedy(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let wrong = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let wrong = wrong.iter().find_map(|kind| match error.get(*kind)? {
        ContextValue::String(word) => Some(word.clone()),
        _ => None,
    })?;
    let option = wrong.split(['=', ' ']).next().unwrap_or_default();
    match (error.kind(), option) {
        (ErrorKind::UnknownArgument, "--port" | "-p") => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            let position = words.iter().position(|word| word.starts_with(option))?;
            let joined = words[position].split_once('=').map(|(_, port)| port);
            let port = joined.or_else(|| Some(words.get(position + 1)?.as_ref()));
            let port = port.filter(|port| port.parse::<u16>().is_ok());
            let port = port.unwrap_or("8080");
            Some(format!(
                "there is no `{option}`; write the address and the port: `--listen \
                 127.0.0.1:{port}` (this machine only) or `--listen 0.0.0.0:{port}` (every interface)"
            ))
        }
        (ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand, word)
            if !word.starts_with('-') =>
        {
            let start = words.iter().position(|other| other.to_string_lossy() == wrong)?;
            let is_serve = words[..start].first().is_some_and(|first| first == "serve");
            let is_command = start == 0;
            let commands = Cli::command_line();
            let mut names = commands.get_subcommands().map(clap::Command::get_name);
            let is_near = |name: &&str| strsim::damerau_levenshtein(name, word) <= 2;
            if let (true, Some(near)) = (is_command, names.find(is_near)) {
                return Some(format!("there is no command `{word}`; did you mean `{near}`?"));
            }
            if !is_serve && !is_command {
                return None;
            }
            let options: Vec<_> = words[usize::from(is_serve)..start]
                .iter()
                .map(|word| format!("{} ", word.to_string_lossy()))
                .collect();
            let command: Vec<_> =
                words[start..].iter().map(|word| word.to_string_lossy()).collect();
            Some(format!(
                "`{wrong}` is no command of roundhouse; a server to host is written behind `--`: \
                 `roundhouse serve {}-- {}`",
                options.concat(),
                command.join(" ")
            ))
        }
        _ => None,
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
    /// Add a tenant with a server to a settings file.
    Add(Add),
    /// Add the servers of a client's file (`mcpServers`) as tenants to a settings file.
    Import(Import),
    /// Make a key with which a client may use a tenant's endpoint, and add its SHA-256 to a settings
    /// file. The key is printed once, and stored nowhere.
    Key(Key),
    /// Make a token for operators of the admin port, and add its SHA-256 to a settings file. The token
    /// is printed once, and stored nowhere.
    AdminKey(AdminKey),
    /// Write the fingerprints of what a tenant's servers say of their tools and prompts into
    /// `node.pins_dir`, for backends with `pin`. Starts the servers and stops them.
    Pin(Pin),
    /// A command that asks a running node.
    #[command(flatten)]
    Operator(OperatorCommand),
}

/// `roundhouse serve`.
#[derive(Debug, Default, Args)]
#[command(after_help = help(
    "  roundhouse serve -- npx -y @modelcontextprotocol/server-everything\n  \
     roundhouse serve --config roundhouse.toml --listen 0.0.0.0:8080\n"
))]
pub struct Serve {
    /// The settings file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the listener for clients; port 0 takes any free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS", value_parser = listen)]
    pub listen: Option<SocketAddr>,
    /// Address of the listener for operators; port 0 takes any free one, and `unix:/PATH` is a
    /// Unix socket [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS", value_parser = admin)]
    pub admin: Option<AdminAddress>,
    /// A server to host as the tenant `demo`: a program that speaks MCP over its standard
    /// input and output. It gets the environment of this process. With `--config` it is served
    /// beside the tenants of the file, which must not have a tenant `demo`.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `roundhouse stdio`.
#[derive(Debug, Args)]
#[command(after_help = help("  roundhouse stdio --config roundhouse.toml --tenant files\n"))]
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
#[command(after_help = help(
    "  roundhouse check roundhouse.toml\n  roundhouse check --start roundhouse.toml\n"
))]
pub struct Check {
    /// The settings file (TOML).
    pub config: PathBuf,
    /// Exit with 1 also if there are only warnings.
    #[arg(long)]
    pub strict: bool,
    /// Start the server of each tenant once, list its tools, and stop it. Each start may take
    /// `sessions.start_secs`.
    #[arg(long)]
    pub start: bool,
}

/// `roundhouse add`.
#[derive(Debug, Args)]
#[command(after_help = help(
    "  roundhouse add files -- npx -y @modelcontextprotocol/server-filesystem /srv\n  \
     roundhouse add time --into /etc/roundhouse/roundhouse.toml -- uvx mcp-server-time\n"
))]
pub struct Add {
    /// The name of the tenant, which stands in its endpoint's path: a-z, 0-9, `-` and `_`.
    pub name: String,
    /// The settings file (TOML), which is created if it is not there. Its comments and its order
    /// stay.
    #[arg(long, value_name = "FILE", default_value = "roundhouse.toml")]
    pub into: PathBuf,
    /// A variable of the server's environment; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// A program that speaks MCP over its standard input and output, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `roundhouse import`.
#[derive(Debug, Args)]
#[command(after_help = help(
    "  roundhouse import .mcp.json\n  \
     roundhouse import ~/.config/Claude/claude_desktop_config.json --into roundhouse.toml\n"
))]
pub struct Import {
    /// The file of a client: Claude Desktop, `.mcp.json`, Cursor (`mcpServers`) or VS Code
    /// (`servers`).
    pub file: PathBuf,
    /// The settings file (TOML) to which the tenants are added; without it they are printed. It is
    /// created if it is not there. Its comments and its order stay.
    #[arg(long, value_name = "FILE")]
    pub into: Option<PathBuf>,
}

/// `roundhouse pin`.
#[derive(Debug, Args)]
#[command(after_help = help(
    "  roundhouse pin team\n  roundhouse pin team --show\n  \
     roundhouse pin team --check --config /etc/roundhouse/roundhouse.toml\n"
))]
pub struct Pin {
    /// The tenant.
    pub tenant: String,
    /// The settings file (TOML).
    #[arg(long, value_name = "FILE", default_value = "roundhouse.toml")]
    pub config: PathBuf,
    /// A backend of the tenant; may be repeated. The fingerprints of others stay as they are. Without this
    /// option all backends with `pin` are asked.
    #[arg(long, value_name = "NAME")]
    pub backend: Vec<String>,
    /// Write nothing; exit with 1 if something differs.
    #[arg(long)]
    pub check: bool,
    /// Print each new or changed definition.
    #[arg(long)]
    pub show: bool,
}

/// `roundhouse key`.
#[derive(Debug, Args)]
#[command(after_help = help(
    "  roundhouse key files ada --days 365\n  \
     roundhouse key files ada-2027 --subject ada --into /etc/roundhouse/roundhouse.toml\n  \
     roundhouse key files ada --print\n"
))]
pub struct Key {
    /// The tenant, whose `auth` is `"keys"`.
    pub tenant: String,
    /// The name of the key, as in `[tenants.TENANT.keys.NAME]`: letters, digits, `-` and `_`.
    pub name: String,
    /// The client that gets the key, if that is not NAME. Sessions belong to the client: with a second key
    /// of the same subject it can use them before the first key is removed.
    #[arg(long, value_name = "SUBJECT")]
    pub subject: Option<String>,
    /// The key ends after so many days; without this option it does not end.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: Option<u32>,
    /// A scope of the client, for the rules in `[tenants.TENANT.permissions]`; may be repeated.
    #[arg(long, value_name = "SCOPE")]
    pub scope: Vec<String>,
    /// The settings file (TOML). Its comments and its order stay.
    #[arg(long, value_name = "FILE", default_value = "roundhouse.toml")]
    pub into: PathBuf,
    /// Write no file: print what to write to standard error.
    #[arg(long, conflicts_with = "into")]
    pub print: bool,
}

fn listen(written: &str) -> Result<SocketAddr, String> {
    addresses::listen(written).map_err(|why| format!("this {why}"))
}

fn admin(written: &str) -> Result<AdminAddress, String> {
    addresses::admin(written).map_err(|why| format!("this {why}"))
}

fn variable(written: &str) -> Result<(String, String), String> {
    match written.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write a name, an equals sign and a value, as in LOG=info".into()),
    }
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
