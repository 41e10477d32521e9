//! `/v1/accounts` of the listener for operators: forgets the accounts that a user has linked at servers.

use std::sync::Arc;

use actix_http::StatusCode;
use actors::{CredentialProblem, Handle, Linking};
use serde_json::{Value, json};
use tenants::{Access, ClientName, Tenants};

use crate::admin_api::ApiAnswer;

/// Most bytes of a subject, an issuer or the name of a backend.
const NAME_BYTES_MAX: usize = 1_024;

/// The accounts that are to be forgotten.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unlink {
    pub(crate) tenant: Arc<str>,
    pub(crate) subject: String,
    /// Otherwise that of the tenant.
    issuer: Option<String>,
    /// Otherwise all of the tenant.
    pub(crate) backend: Option<String>,
}

impl Unlink {
    /// The parameters of a request, or what to write.
    pub(crate) fn read(
        [tenant, subject, issuer, backend]: [Option<String>; 4],
    ) -> Result<Self, &'static str> {
        let all = [&tenant, &subject, &issuer, &backend];
        if all.into_iter().flatten().any(|text| text.len() > NAME_BYTES_MAX) {
            return Err("write names of at most 1 KiB");
        }
        let (Some(tenant), Some(subject)) = (tenant, subject) else {
            return Err("write ?tenant= and &subject=");
        };
        Ok(Self { tenant: tenant.into(), subject, issuer, backend })
    }

    /// Forgets the accounts. Returns the outcome for the record, and the answer.
    pub(crate) async fn perform(
        &self,
        handle: &Handle,
        tenants: &Tenants,
    ) -> (&'static str, ApiAnswer) {
        let refused = |status, why: &str| ("refused", ApiAnswer::error(status, why));
        let Some(tenant) = tenants.find(&self.tenant) else {
            let why = "there is no such tenant at this node; a tenant's name stands in its endpoint's path";
            return refused(StatusCode::NOT_FOUND, why);
        };
        let own = match &tenant.access {
            Access::Authenticated(credentials) => credentials.oauth.as_ref(),
            Access::Open => None,
        };
        let issuer = self.issuer.as_deref().or(own.map(|rules| &*rules.issuer));
        let Some(issuer) = issuer else {
            let why = "users of this tenant link no accounts: it has no issuer";
            return refused(StatusCode::CONFLICT, why);
        };
        let is_wanted = |linking: &Linking| {
            self.backend.as_deref().is_none_or(|backend| linking.backend() == backend)
        };
        let mut linkings = handle.linkings(&tenant.name);
        linkings.retain(is_wanted);
        if linkings.is_empty() {
            let why =
                "no such backend of this tenant has `credential.grant = \"authorization_code\"`";
            return refused(StatusCode::NOT_FOUND, why);
        }
        let principal = ClientName::Subject { issuer, subject: &self.subject }.principal();
        let (user, vault) = (handle.user(&tenant.name, &principal), handle.vault());
        // Together: each may wait for a node that refreshes the tokens.
        let unlinking = linkings.iter().map(|linking| linking.unlink(&vault, &user));
        let unlinked = futures_util::future::join_all(unlinking).await;
        answer(std::iter::zip(&linkings, unlinked))
    }
}

fn answer<'a>(
    unlinked: impl Iterator<Item = (&'a Linking, Result<bool, CredentialProblem>)>,
) -> (&'static str, ApiAnswer) {
    let (mut accounts, mut outcome) = (Vec::<Value>::new(), "not linked");
    let mut failed = None;
    for (linking, unlinked) in unlinked {
        accounts.push(json!({ "backend": linking.backend(), "unlinked": unlinked.ok() }));
        match unlinked {
            Ok(true) => outcome = "unlinked",
            Ok(false) => {}
            Err(problem) => failed = Some(problem),
        }
    }
    let Some(problem) = failed else {
        return (outcome, ApiAnswer::ok(json!({ "accounts": accounts })));
    };
    let why = match problem {
        CredentialProblem::StoreUnavailable => "the store did not answer",
        _ => "a node is refreshing the tokens",
    };
    let error =
        format!("not all accounts were unlinked: {why}; repeat the command until it succeeds");
    let mut answer = ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, error);
    answer.body["accounts"] = accounts.into();
    ("not confirmed", answer)
}
