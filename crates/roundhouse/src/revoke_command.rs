//! Runs `roundhouse revoke`.

use crate::admin_client::{Client, with_query};
use crate::cli::Revoke;
use crate::operator_commands::{Column, json, note, shown, text};

const REVOCATIONS: [Column; 7] = [
    ("TENANT", |one| text(&one["tenant"])),
    ("CREDENTIAL", |one| text(&one["credential"])),
    ("SUBJECT", |one| match one["client"].is_null() {
        true => text(&one["subject"]),
        false => format!("client {}", text(&one["client"])),
    }),
    ("ISSUER", |one| text(&one["issuer"])),
    ("REVOKED", |one| text(&one["revoked"])),
    ("TAKEN BACK", |one| text(&one["lifted"])),
    ("ENDS", |one| text(&one["ends"])),
];

/// Runs the command. Returns what it prints.
pub(crate) fn run(revoke: &Revoke) -> anyhow::Result<String> {
    let Revoke { tenant, subject, client, issuer, lift, list, operator } = revoke;
    let path = with_query(
        "/revocations",
        &[
            ("tenant", tenant.as_ref().map(|tenant| tenant as _)),
            ("subject", subject.as_ref().map(|subject| subject as _)),
            ("client", client.as_ref().map(|client| client as _)),
            ("issuer", issuer.as_ref().map(|issuer| issuer as _)),
        ],
    );
    let node = Client::new(operator)?;
    let answer = match (list, lift) {
        (true, _) => node.get(&path)?,
        (false, true) => node.delete(&path)?,
        (false, false) => node.post(&path, None)?,
    };
    let answer = answer.json()?;
    if !list {
        for node in answer["untold"].as_array().into_iter().flatten() {
            note(&format!(
                "node {} was not told by the node itself; it reads this from the store, or from a node \
                 that it reaches",
                text(node)
            ));
        }
        let revoked = answer["revocations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let are_of_keys = revoked.iter().all(|one| one["credential"] == "key");
        if !lift && are_of_keys && answer["keys"] == 0 {
            note(
                "no key in the settings of this node has this subject: compare the spelling with the keys \
                 of the tenant; the revocation counts for keys that are made later, until `--lift`",
            );
        }
    }
    if operator.json {
        json(&answer)
    } else {
        shown(operator, &answer, "revocations", &REVOCATIONS)
    }
}
