//! The commands for operators of running nodes.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Revoke, Unlink, help};

/// Said at the end of the help of each command that asks a node.
pub(super) fn operator_help(examples: &str) -> String {
    format!(
        "Examples:\n{examples}\nThe exit code is 0 if the node did what was asked, 1 if not, and 2 if the \
         command line is wrong.\nThe variable ROUNDHOUSE_ADMIN_TOKEN may hold the token instead of a file."
    )
}

/// Which node a command asks, and as whom.
#[derive(Clone, Debug, Args)]
pub struct Operator {
    /// The admin port of a node (`admin.listen`): an address and a port, or `unix:` and the path of
    /// its socket.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
    pub admin: String,
    /// A file that holds the token of a credential. Other users may not read it.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A command that asks a running node.
#[derive(Debug, Subcommand)]
pub enum OperatorCommand {
    /// List the nodes of the cluster; `*` marks the one that is asked.
    #[command(after_help = operator_help("  roundhouse nodes --token-file /etc/roundhouse/admin.token\n"))]
    Nodes(Operator),
    /// List the tenants: who may use them, and what they use of their limits on all nodes.
    Tenants(Tenants),
    /// List the sessions of all nodes, or those that sleep in Redis and are on no node.
    Sessions(Sessions),
    /// Have a node release its sessions to the other nodes; a node on its own ends them. Its process
    /// stays.
    Drain(Drain),
    /// Take a drain back: the node accepts sessions again.
    #[command(after_help = operator_help("  roundhouse undrain --token-file /etc/roundhouse/admin.token\n"))]
    Undrain(Operator),
    /// End a session, at whichever node it is. Its running calls are cancelled.
    EndSession(EndSession),
    /// Revoke a client of a tenant: its sessions end at all nodes, and its keys and older tokens do
    /// not count any more.
    Revoke(Revoke),
    /// Forget the accounts that a user has linked at servers of a tenant: the user links them again.
    Unlink(Unlink),
}

/// `roundhouse tenants`.
#[derive(Debug, Args)]
#[command(after_help = operator_help("  roundhouse tenants --admin unix:/run/roundhouse/admin.sock\n"))]
pub struct Tenants {
    /// Most tenants to print; without this option all of them.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: Option<u32>,
    /// Begin behind this name, the last one of the former page.
    #[arg(long, value_name = "NAME")]
    pub after: Option<String>,
    /// The node to ask.
    #[command(flatten)]
    pub operator: Operator,
}

/// `roundhouse sessions`.
#[derive(Debug, Args)]
#[command(after_help = operator_help(
    "  roundhouse sessions --tenant files\n  roundhouse sessions --json --limit 1000\n  \
     roundhouse sessions --sleeping\n"
))]
pub struct Sessions {
    /// The sessions of this tenant only.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// The sessions that no node has: those that sleep in Redis until their clients send again, and
    /// those whose node was lost. The node reads through Redis, and a page may be empty.
    #[arg(long)]
    pub sleeping: bool,
    /// Most sessions to print; with `--sleeping` it may be some more.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// Begin behind the former page, which names this value.
    #[arg(long, value_name = "ID")]
    pub after: Option<String>,
    /// The node to ask.
    #[command(flatten)]
    pub operator: Operator,
}

/// `roundhouse drain`.
#[derive(Debug, Args)]
#[command(after_help = operator_help("  roundhouse drain --wait --secs 30\n"))]
pub struct Drain {
    /// How long requests in flight may take; then they end with an error.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub secs: u32,
    /// Wait until the node has no session, at most a minute longer than `--secs`.
    #[arg(long)]
    pub wait: bool,
    /// The node to ask.
    #[command(flatten)]
    pub operator: Operator,
}

/// `roundhouse end-session`.
#[derive(Debug, Args)]
#[command(after_help = operator_help(
    "  roundhouse end-session 3f9a1c20d4e5b6a7 --tenant files\n"
))]
pub struct EndSession {
    /// The id that `roundhouse sessions` prints, with `--tenant`; or the value of `Mcp-Session-Id`.
    pub session: String,
    /// The tenant of the session.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// The node to ask.
    #[command(flatten)]
    pub operator: Operator,
}

/// What a credential of the admin port may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdminRole {
    /// Read lists of nodes, tenants and sessions, and metrics.
    Read,
    /// Everything.
    Operate,
}

impl fmt::Display for AdminRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Operate => "operate",
        })
    }
}

/// `roundhouse admin-key`.
#[derive(Debug, Args)]
#[command(after_help = help(
    "  roundhouse admin-key ops --role operate --days 365\n  \
     roundhouse admin-key dashboard --role read --into /etc/roundhouse/roundhouse.toml\n"
))]
pub struct AdminKey {
    /// The name of the credential, as in `[admin.credentials.NAME]`: letters, digits, `-` and `_`. Logs
    /// have it.
    pub name: String,
    /// What the credential may do.
    #[arg(long, value_enum)]
    pub role: AdminRole,
    /// The credential ends after so many days; without this option it does not end.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: Option<u32>,
    /// The settings file (TOML). Its comments and its order stay.
    #[arg(long, value_name = "FILE", default_value = "roundhouse.toml")]
    pub into: PathBuf,
    /// Write no file: print what to write to standard error.
    #[arg(long, conflicts_with = "into")]
    pub print: bool,
}
