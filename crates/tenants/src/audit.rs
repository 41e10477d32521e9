//! The parts of payloads that audit records of a tenant have: none, unless its settings name them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Most parts of one tenant.
const FIELDS_MAX: usize = 16;

/// The longest path, in bytes.
const PATH_BYTES_MAX: usize = 256;

/// The beginning of each path: the arguments of tools and prompts. The other parameters are in each
/// record, or are metadata, which may hold credentials.
const ARGUMENTS: &str = "params.arguments.";

/// What audit records have of payloads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSettings {
    /// Paths of arguments of tools and prompts, as `params.arguments.path`. Of each value at most 256
    /// bytes are recorded.
    pub fields: Vec<String>,
}

/// A part of the payload of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedField {
    /// The path as it is written in the settings and in records.
    pub path: Arc<str>,
    /// The names of the members on the way, from the parameters on.
    pub members: Vec<String>,
}

impl AuditSettings {
    /// The parts, or everything that is wrong with them.
    pub(crate) fn fields(&self, tenant: &str) -> Result<Vec<AuditedField>, Vec<Error>> {
        let wrong = |written: &str, remedy| Error::AuditedField {
            tenant: tenant.to_owned(),
            written: written.chars().take(PATH_BYTES_MAX).collect(),
            remedy,
        };
        let field = |written: &String| {
            let members = written.strip_prefix(ARGUMENTS).map(|rest| rest.split('.'));
            let Some(mut members) = members else {
                return Err(wrong(
                    written,
                    "write the path of an argument of a tool or a prompt, as in \
                     \"params.arguments.path\"",
                ));
            };
            if members.clone().any(str::is_empty) || written.len() > PATH_BYTES_MAX {
                return Err(wrong(
                    written,
                    "write names with a dot between each two, together at most 256 bytes",
                ));
            }
            let members = std::iter::once("arguments").chain(&mut members);
            let members = members.map(str::to_owned).collect();
            Ok(AuditedField { path: written.as_str().into(), members })
        };
        let (fields, mut problems): (Vec<_>, Vec<_>) =
            self.fields.iter().map(field).partition(Result::is_ok);
        if self.fields.len() > FIELDS_MAX {
            let tenant = tenant.to_owned();
            problems.push(Err(Error::TooManyAuditedFields { tenant, max: FIELDS_MAX }));
        }
        match problems.is_empty() {
            true => Ok(fields.into_iter().flatten().collect()),
            false => Err(problems.into_iter().filter_map(Result::err).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(paths: &[&str]) -> Result<Vec<AuditedField>, Vec<Error>> {
        let fields = paths.iter().map(|path| (*path).to_owned()).collect();
        AuditSettings { fields }.fields("acme")
    }

    #[test]
    fn a_path_leads_to_an_argument() {
        let found = fields(&["params.arguments.path", "params.arguments.a.b"]).unwrap();
        assert_eq!(found[0].members, ["arguments", "path"]);
        assert_eq!(found[1].members, ["arguments", "a", "b"]);
        assert_eq!(&*found[1].path, "params.arguments.a.b");
        assert!(fields(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_path_to_something_else_is_refused_with_its_key_and_the_remedy() {
        let long = format!("params.arguments.{}", "x".repeat(300));
        for path in [
            "",
            "params",
            "params.arguments",
            "params.arguments.",
            "params.arguments..a",
            "params._meta.token",
            "params.name",
            "headers.authorization",
            &long,
        ] {
            let wrong = fields(&[path]).unwrap_err();
            let text = wrong[0].to_string();
            assert!(text.starts_with("`tenants.acme.audit.fields` has "), "{text}");
            assert!(text.contains("write"), "{text}");
        }
        let many = vec!["params.arguments.x"; 17];
        assert!(fields(&many).unwrap_err()[0].to_string().contains("more than 16 paths"));
    }
}
