//! `/revocations` of the listener for operators: revokes clients, takes that back, and lists them.

use actix_http::{Method, StatusCode};
use actors::{
    Handle, REVOCATIONS_MAX, Revocation, RevocationOrder, RevocationRefused, RevocationResult,
    TENANT_REVOCATIONS_MAX,
};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tenants::{Access, ClientName, Principal, Tenant, Tenants};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Most bytes of a subject, the id of a client or an issuer.
const NAME_BYTES_MAX: usize = 1_024;

/// An answer: a status, and JSON.
pub(crate) type JsonAnswer = (StatusCode, Value);

/// What a request that revoked, or took that back, has changed.
pub(crate) struct Changed {
    /// The clients.
    pub(crate) principals: Vec<Principal>,
    /// The kinds of their credentials.
    pub(crate) credentials: String,
    pub(crate) is_stored: bool,
    /// The other nodes that know it by now, and those that do not.
    pub(crate) told: usize,
    pub(crate) untold: usize,
}

/// Answers a request whose sender may do this: POST revokes, DELETE takes back, GET lists.
pub(crate) async fn answer(
    method: &Method,
    wanted: &Wanted,
    handle: &Handle,
    tenants: &Tenants,
) -> (JsonAnswer, Option<Changed>) {
    let order = match *method {
        Method::POST => RevocationOrder::Revoke,
        Method::DELETE => RevocationOrder::Lift,
        _ => return (list(wanted, handle), None),
    };
    match change(wanted, order, handle, tenants).await {
        Ok((answer, changed)) => (answer, Some(changed)),
        Err(refused) => (refused, None),
    }
}

/// The parameters of a request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) tenant: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) client: Option<String>,
    pub(crate) issuer: Option<String>,
}

impl Wanted {
    /// The parameters in a query, or what is wrong with them.
    pub(crate) fn read(query: &str) -> Result<Self, String> {
        let mut wanted = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "tenant" => &mut wanted.tenant,
                "subject" => &mut wanted.subject,
                "client" => &mut wanted.client,
                "issuer" => &mut wanted.issuer,
                _ => return Err("write ?tenant=, &subject= or &client=, and &issuer= only".into()),
            };
            let value = percent_decode_str(value).decode_utf8().map(String::from).ok();
            let value = value.filter(|text| !text.is_empty() && text.len() <= NAME_BYTES_MAX);
            let is_first = place.is_none();
            let Some(value) = value.filter(|_| is_first) else {
                return Err(format!("write ?{name}= once, with a value of at most 1 KiB in UTF-8"));
            };
            *place = Some(value);
        }
        Ok(wanted)
    }

    /// The clients that are meant. A subject without an issuer is each client of that name: one that is
    /// revoked in vain can be taken back, one that was forgotten goes on.
    fn clients<'a>(&'a self, tenant: &'a Tenant) -> Result<Vec<ClientName<'a>>, JsonAnswer> {
        let bad = |why: &str| Err(error(StatusCode::BAD_REQUEST, why));
        let Access::Authenticated(credentials) = &tenant.access else {
            let why = "the endpoint of this tenant is open: its clients are not known";
            return Err(error(StatusCode::CONFLICT, why));
        };
        let own = credentials.oauth.as_ref().map(|rules| rules.issuer.as_str());
        let issuer = self.issuer.as_deref().or(own);
        match (self.subject.as_deref(), self.client.as_deref(), issuer) {
            (Some(_), Some(_), _) => bad("write &subject= or &client=, and not both"),
            (None, None, _) => bad("write &subject=, or &client= for tokens without a subject"),
            (None, Some(_), None) => bad("the tenant has no issuer: write &issuer= as well"),
            (None, Some(id), Some(issuer)) => Ok(vec![ClientName::Client { issuer, id }]),
            (Some(subject), None, issuer) => {
                let has_keys = credentials.keys.is_some() && self.issuer.is_none();
                let key = has_keys.then_some(ClientName::Key { subject });
                let token = issuer.map(|issuer| ClientName::Subject { issuer, subject });
                Ok(key.into_iter().chain(token).collect())
            }
        }
    }
}

fn list(wanted: &Wanted, handle: &Handle) -> JsonAnswer {
    let is_wanted =
        |one: &Revocation| wanted.tenant.as_ref().is_none_or(|tenant| *one.tenant == **tenant);
    let all = handle.revocations().list().all();
    let all: Vec<_> = all.iter().filter(|one| is_wanted(one)).map(shown).collect();
    (StatusCode::OK, json!({ "revocations": all }))
}

async fn change(
    wanted: &Wanted,
    order: RevocationOrder,
    handle: &Handle,
    tenants: &Tenants,
) -> Result<(JsonAnswer, Changed), JsonAnswer> {
    let Some(name) = wanted.tenant.as_deref() else {
        return Err(error(StatusCode::BAD_REQUEST, "write ?tenant="));
    };
    let Some(tenant) = tenants.find(name) else {
        let why =
            "there is no such tenant at this node; a tenant's name stands in its endpoint's path";
        return Err(error(StatusCode::NOT_FOUND, why));
    };
    let mut clients = wanted.clients(&tenant)?;
    if order == RevocationOrder::Lift {
        let list = handle.revocations().list();
        clients.retain(|client| {
            let times = list.times(&tenant.name, client.principal().name());
            times.is_some_and(|times| !times.is_lifted())
        });
        if clients.is_empty() {
            let why =
                "no such client of this tenant is revoked; `roundhouse revoke --list` has all";
            return Err(error(StatusCode::NOT_FOUND, why));
        }
    }
    let principals: Vec<_> = clients.iter().map(|client| client.principal()).collect();
    let result = handle.revoke(&tenant.name, &principals, order).await;
    let result = result.map_err(|refused| error(StatusCode::CONFLICT, refusal(refused)))?;
    let noted = note(&tenant.name, &clients, &result);
    let list = handle.revocations().list();
    let changed = principals.iter().filter_map(|principal| {
        let times = list.times(&tenant.name, principal.name())?;
        let (tenant, principal) = (tenant.name.clone(), principal.name().into());
        Some(shown(&Revocation { tenant, principal, times }))
    });
    let keys = match &tenant.access {
        Access::Open => None,
        Access::Authenticated(credentials) => credentials.keys.as_ref(),
    };
    let of_client = |principal| keys.map_or(0, |keys| keys.count_of(principal));
    let mut body = json!({
        "revocations": changed.collect::<Vec<_>>(),
        "keys": principals.iter().map(of_client).sum::<usize>(),
        "stored": result.stored.is_ok(),
        "told": result.told,
        "untold": result.untold,
    });
    if result.stored.is_ok() {
        return Ok(((StatusCode::OK, body), noted));
    }
    let told = result.told.len();
    body["error"] = format!(
        "done at this node and at {told} others, and not stored: the store did not acknowledge it. The \
         nodes go on trying; repeat the command until it succeeds, before this node is stopped"
    )
    .into();
    Ok(((StatusCode::SERVICE_UNAVAILABLE, body), noted))
}

fn refusal(refused: RevocationRefused) -> String {
    match refused {
        RevocationRefused::TenantFull => format!(
            "the tenant has {TENANT_REVOCATIONS_MAX} revocations, as many as it may: take some back, or \
             change its issuer or its keys"
        ),
        RevocationRefused::Full => {
            format!("there are {REVOCATIONS_MAX} revocations, as many as may be: take some back")
        }
    }
}

/// What was changed, for the line and the record of the action. The log does not name the client.
fn note(tenant: &str, clients: &[ClientName<'_>], result: &RevocationResult) -> Changed {
    if let Err(error) = &result.stored {
        tracing::warn!(
            tenant,
            %error,
            "a revocation is not stored; this node goes on trying, and ends it with its process"
        );
    }
    let credentials = clients.iter().map(|client| client.credential());
    Changed {
        principals: clients.iter().map(|client| client.principal()).collect(),
        credentials: credentials.collect::<Vec<_>>().join(", "),
        is_stored: result.stored.is_ok(),
        told: result.told.len(),
        untold: result.untold.len(),
    }
}

fn shown(revocation: &Revocation) -> Value {
    let Revocation { tenant, principal, times } = revocation;
    let name = ClientName::read(principal);
    let (subject, client, issuer) = match name {
        Some(ClientName::Key { subject }) => (Some(subject), None, None),
        Some(ClientName::Subject { issuer, subject }) => (Some(subject), None, Some(issuer)),
        Some(ClientName::Client { issuer, id }) => (None, Some(id), Some(issuer)),
        None => (None, None, None),
    };
    json!({
        "tenant": tenant,
        "credential": name.map(ClientName::credential),
        "subject": subject,
        "client": client,
        "issuer": issuer,
        "revoked": moment(times.revoked_ms),
        "lifted": times.is_lifted().then(|| moment(times.lifted_ms)),
        "ends": times.ends_ms().and_then(moment),
    })
}

/// The time in the form of RFC 3339.
fn moment(ms: u64) -> Option<String> {
    let moment = OffsetDateTime::from_unix_timestamp(i64::try_from(ms / 1_000).ok()?).ok()?;
    moment.format(&Rfc3339).ok()
}

fn error(status: StatusCode, text: impl Into<String>) -> JsonAnswer {
    (status, json!({ "error": text.into() }))
}

#[cfg(test)]
mod tests {
    use tenants::{OauthSettings, Settings};

    use super::*;

    fn tenant(auth: &str) -> Tenant {
        let issuer = if auth.contains("oauth") { "https://i.example" } else { "" };
        let oauth = OauthSettings { issuer: issuer.into(), ..OauthSettings::default() };
        let settings = Settings { auth: Some(auth.into()), oauth, ..Settings::default() };
        Tenant::new("acme", &settings).unwrap()
    }

    fn names(auth: &str, query: &str) -> Result<Vec<String>, u16> {
        let (tenant, wanted) = (tenant(auth), Wanted::read(query).unwrap());
        let clients = wanted.clients(&tenant).map_err(|(status, _)| status.as_u16())?;
        Ok(clients.iter().map(|client| client.principal().name().to_owned()).collect())
    }

    #[test]
    fn a_subject_is_each_client_of_that_name_unless_the_issuer_is_named() {
        assert_eq!(names("keys", "subject=ada").unwrap(), ["key:ada"]);
        let both = ["key:ada", "sub:https://i.example ada"];
        assert_eq!(names("keys, oauth", "subject=ada").unwrap(), both);
        let other = "subject=a%20b&issuer=https%3A%2F%2Fo.example";
        assert_eq!(names("keys, oauth", other).unwrap(), ["sub:https://o.example a b"]);
        assert_eq!(names("oauth", "client=app").unwrap(), ["client:https://i.example app"]);
        assert_eq!(names("keys", "client=app"), Err(400));
        assert_eq!(names("keys", "issuer=x"), Err(400));
        assert_eq!(names("keys", "subject=a&client=b"), Err(400));
        assert_eq!(names("open", "subject=ada"), Err(409));
    }

    #[test]
    fn parameters_that_are_unknown_empty_or_repeated_are_refused() {
        for query in ["tenat=a", "tenant=", "tenant=a&tenant=b", "subject=%ff", "subject"] {
            Wanted::read(query).unwrap_err();
        }
        assert_eq!(Wanted::read("").unwrap(), Wanted::default());
    }
}
