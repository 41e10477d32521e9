//! The command that unlinks accounts of a user.

use clap::Args;

use super::operators::{Operator, operator_help};

/// `roundhouse unlink`.
#[derive(Debug, Args)]
#[command(after_help = operator_help(
    "  roundhouse unlink --tenant files --subject ada\n  \
     roundhouse unlink --tenant files --subject ada --backend main\n"
))]
pub struct Unlink {
    /// The tenant.
    #[arg(long, value_name = "NAME")]
    pub tenant: String,
    /// The subject of the user's tokens.
    #[arg(long, value_name = "SUBJECT")]
    pub subject: String,
    /// The issuer of these tokens, if it is not that of the tenant.
    #[arg(long, value_name = "URL")]
    pub issuer: Option<String>,
    /// The account at the server of this backend only.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// The node to ask.
    #[command(flatten)]
    pub operator: Operator,
}
