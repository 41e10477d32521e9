//! Runs `roundhouse unlink`.

use crate::admin_client::{Client, with_query};
use crate::cli::Unlink;
use crate::operator_commands::{Column, shown, text};

const ACCOUNTS: [Column; 2] = [
    ("BACKEND", |one| text(&one["backend"])),
    ("UNLINKED", |one| match one["unlinked"] == true {
        true => "yes".to_owned(),
        false => "no account was linked".to_owned(),
    }),
];

/// Runs the command. Returns what it prints.
pub(crate) fn run(unlink: &Unlink) -> anyhow::Result<String> {
    let Unlink { tenant, subject, issuer, backend, operator } = unlink;
    let path = with_query(
        "/v1/accounts",
        &[
            ("tenant", Some(tenant as _)),
            ("subject", Some(subject as _)),
            ("issuer", issuer.as_ref().map(|issuer| issuer as _)),
            ("backend", backend.as_ref().map(|backend| backend as _)),
        ],
    );
    let answer = Client::new(operator)?.delete(&path)?.json()?;
    shown(operator, &answer, "accounts", &ACCOUNTS)
}
