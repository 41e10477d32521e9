//! The command that revokes a client.

use clap::{ArgGroup, Args};

use super::operators::{Operator, operator_help};

/// `roundhouse revoke`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["subject", "client", "list"]),
    after_help = operator_help(
        "  roundhouse revoke --tenant files --subject ada\n  \
         roundhouse revoke --tenant files --subject ada --lift\n  roundhouse revoke --list\n"
    )
)]
pub struct Revoke {
    /// The tenant.
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    pub tenant: Option<String>,
    /// The subject of the client's keys or tokens. Where the tenant has both, both are revoked.
    #[arg(long, value_name = "SUBJECT")]
    pub subject: Option<String>,
    /// The `client_id` of tokens that have no subject.
    #[arg(long, value_name = "ID")]
    pub client: Option<String>,
    /// The tokens of this issuer only, and no keys.
    #[arg(long, value_name = "URL", conflicts_with = "list")]
    pub issuer: Option<String>,
    /// Take the revocation back: what is valid by itself counts again. Sessions stay ended.
    #[arg(long, conflicts_with = "list")]
    pub lift: bool,
    /// List the revocations, of all tenants or of one.
    #[arg(long)]
    pub list: bool,
    /// The node to ask.
    #[command(flatten)]
    pub operator: Operator,
}
