//! The lists and actions of operators, as JSON: `/v1/nodes`, `/v1/tenants`, `/v1/sessions`, `/v1/accounts`.
//!
//! An answer that needs other nodes is awaited, which delays no probe. Every list is bounded.

use std::sync::Arc;

use actix_http::{Method, StatusCode};
use actors::{
    EndProblem, Ended, Handle, Listing, NodeSummary, Overview, PAGE_MAX, ScanCursor, SessionQuery,
    SessionSummary, ShortId, SleepingPage, SleepingQuery, SleepingSession, Target, Unasked,
};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tenants::Tenants;

use crate::admin_accounts::Unlink;
use crate::admin_credentials::Role;
use crate::admin_tenants::{self, TenantsQuery};

/// What all paths of this file begin with.
pub(crate) const PREFIX: &str = "/v1/";

/// The sessions of one page, if the request names no number.
const PAGE: usize = 100;

/// The name of a node that has none.
const NAMELESS: &str = "local";

/// The outcome of each list.
const LISTED: &str = "listed";

/// What the lists are made of.
pub(crate) struct Listed<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) overview: Overview,
    pub(crate) tenants: &'a Tenants,
}

/// A request of an operator, read and not judged.
#[derive(Debug, PartialEq)]
pub(crate) enum ApiRequest {
    Nodes,
    Tenants(TenantsQuery),
    Sessions(SessionQuery),
    Sleeping(SleepingQuery),
    EndSession { target: Target, tenant: Option<Arc<str>> },
    Unlink(Unlink),
}

/// An answer.
pub(crate) struct ApiAnswer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl ApiAnswer {
    pub(crate) fn ok(body: Value) -> Self {
        Self { status: StatusCode::OK, body }
    }

    /// An error, and what to do.
    pub(crate) fn error(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, body: json!({ "error": text.into() }) }
    }
}

/// The outcome of a request.
pub(crate) struct Performed {
    /// For the record.
    pub(crate) outcome: &'static str,
    /// The session that was ended.
    pub(crate) ended: Option<Ended>,
    pub(crate) answer: ApiAnswer,
}

impl Performed {
    fn listed(list: Value) -> Self {
        Self { outcome: LISTED, ended: None, answer: ApiAnswer::ok(list) }
    }

    /// Of a request that took too long.
    pub(crate) fn late() -> Self {
        let why = "other nodes or the store did not answer in time; the request may still take effect: \
                   ask again";
        let answer = ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why);
        Self { outcome: "no answer in time", ended: None, answer }
    }
}

/// Why a request cannot be read.
#[derive(Debug, PartialEq)]
pub(crate) enum Unreadable {
    /// There is no such path.
    Path,
    /// Only these methods are taken there.
    Method(&'static str),
    /// A parameter is wrong.
    Parameter(String),
}

impl ApiRequest {
    /// Reads a request whose path begins with [`PREFIX`].
    pub(crate) fn read(method: &Method, path: &str, query: &str) -> Result<Self, Unreadable> {
        let path = path.strip_prefix(PREFIX).ok_or(Unreadable::Path)?;
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        match path {
            "nodes" | "tenants" | "sessions" if !is_read => Err(Unreadable::Method("GET, HEAD")),
            "nodes" => parameters(query, []).map(|[]| Self::Nodes),
            "tenants" => Self::tenants(query),
            "sessions" => Self::sessions(query),
            "accounts" if *method != Method::DELETE => Err(Unreadable::Method("DELETE")),
            "accounts" => {
                let named = parameters(query, ["tenant", "subject", "issuer", "backend"])?;
                Unlink::read(named)
                    .map(Self::Unlink)
                    .map_err(|why| Unreadable::Parameter(why.to_owned()))
            }
            _ => match path.strip_prefix("sessions/") {
                Some(_) if *method != Method::DELETE => Err(Unreadable::Method("DELETE")),
                Some(session) => Self::end_session(session, query),
                None => Err(Unreadable::Path),
            },
        }
    }

    fn tenants(query: &str) -> Result<Self, Unreadable> {
        let [limit, after] = parameters(query, ["limit", "after"])?;
        let limit = limit.map(|limit| read_limit(&limit)).transpose()?;
        Ok(Self::Tenants(TenantsQuery { after, limit }))
    }

    fn sessions(query: &str) -> Result<Self, Unreadable> {
        let [tenant, limit, after, sleeping] =
            parameters(query, ["tenant", "limit", "after", "sleeping"])?;
        let limit = limit.map_or(Ok(PAGE), |limit| read_limit(&limit))?;
        let tenant = tenant.map(Into::into);
        match sleeping.as_deref() {
            None | Some("false") => {}
            Some("true") => {
                let Ok(after) = after.as_deref().map_or(Ok(ScanCursor::default()), str::parse)
                else {
                    let why = "write ?after= and the value of `next` in the former page";
                    return Err(Unreadable::Parameter(why.into()));
                };
                return Ok(Self::Sleeping(SleepingQuery { tenant, after, limit }));
            }
            Some(_) => {
                let why = "write ?sleeping=true for the sessions that no node has";
                return Err(Unreadable::Parameter(why.into()));
            }
        }
        let after = match after.as_deref().map(ShortId::parse) {
            None => None,
            Some(Some(after)) => Some(after),
            Some(None) => {
                let why = "write ?after= and the id of a session, which has 16 hexadecimal digits";
                return Err(Unreadable::Parameter(why.into()));
            }
        };
        Ok(Self::Sessions(SessionQuery { tenant, after, limit }))
    }

    fn end_session(session: &str, query: &str) -> Result<Self, Unreadable> {
        let [tenant] = parameters(query, ["tenant"])?;
        let target = decoded(session).and_then(|session| Target::parse(&session));
        let Some(target) = target else {
            let why = "this names no session: write the id that `roundhouse sessions` prints, with its \
                       tenant, or the value of `Mcp-Session-Id`";
            return Err(Unreadable::Parameter(why.into()));
        };
        if matches!(target, Target::Short(_)) && tenant.is_none() {
            let why =
                "the id that a list shows needs its tenant: add `?tenant=NAME` (`--tenant NAME`)";
            return Err(Unreadable::Parameter(why.into()));
        }
        Ok(Self::EndSession { target, tenant: tenant.map(Into::into) })
    }

    /// The role that it needs.
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Nodes | Self::Tenants(_) | Self::Sessions(_) | Self::Sleeping(_) => Role::Read,
            Self::EndSession { .. } | Self::Unlink(_) => Role::Operate,
        }
    }

    /// The name of the action.
    pub(crate) fn action(&self) -> &'static str {
        match self {
            Self::Nodes => "list nodes",
            Self::Tenants(_) => "list tenants",
            Self::Sessions(_) => "list sessions",
            Self::Sleeping(_) => "list sleeping sessions",
            Self::EndSession { .. } => "end session",
            Self::Unlink(_) => "unlink account",
        }
    }

    /// What it is about. No session's id is in it.
    pub(crate) fn object(&self) -> String {
        match self {
            Self::Nodes | Self::Tenants(_) => "cluster".to_owned(),
            Self::Sessions(SessionQuery { tenant, .. })
            | Self::Sleeping(SleepingQuery { tenant, .. }) => {
                tenant.as_deref().unwrap_or("all tenants").to_owned()
            }
            Self::EndSession { target, .. } => target.to_string(),
            Self::Unlink(Unlink { backend, .. }) => {
                backend.as_deref().unwrap_or("all backends").to_owned()
            }
        }
    }

    /// The tenant and the subject of the user that it is about. Only the audit log has the latter.
    pub(crate) fn user(&self) -> Option<(Arc<str>, String)> {
        match self {
            Self::Unlink(Unlink { tenant, subject, .. }) => {
                Some((Arc::clone(tenant), subject.clone()))
            }
            _ => None,
        }
    }

    /// Performs it for an operator that may do so.
    pub(crate) async fn perform(self, listed: Listed<'_>) -> Performed {
        match self {
            Self::Nodes => {
                let (nodes, unasked) = listed.overview.nodes().await;
                let nodes: Vec<_> = nodes.into_iter().map(node).collect();
                Performed::listed(json!({ "nodes": nodes, "unasked": names(unasked) }))
            }
            Self::Tenants(query) => {
                let (nodes, unasked) = listed.overview.tenants().await;
                let own = listed.tenants.by_name();
                let (tenants, next) = admin_tenants::tenants(&own, nodes, &query);
                Performed::listed(json!({
                    "tenants": tenants, "next": next.as_deref(), "unasked": names(unasked),
                }))
            }
            Self::Sessions(query) => {
                let Listing { sessions, next, unasked } = listed.overview.sessions(query).await;
                let sessions: Vec<_> =
                    sessions.into_iter().map(|(node, one)| session(&node, one)).collect();
                let next = next.map(|next| next.to_string());
                Performed::listed(json!({
                    "sessions": sessions, "next": next, "unasked": names(unasked),
                }))
            }
            Self::Sleeping(query) => match listed.overview.sleeping(query).await {
                Ok(SleepingPage { sessions, next, unread }) => {
                    let sessions: Vec<_> = sessions.into_iter().map(self::sleeping).collect();
                    let next = next.map(|next| next.to_string());
                    Performed::listed(json!({
                        "sessions": sessions, "next": next, "unread": unread,
                    }))
                }
                Err(error) => {
                    let why = format!("the store did not list its sessions: {error}");
                    let answer = ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why);
                    Performed { outcome: "no list", ended: None, answer }
                }
            },
            Self::Unlink(unlink) => {
                let (outcome, answer) = unlink.perform(listed.handle, listed.tenants).await;
                Performed { outcome, ended: None, answer }
            }
            Self::EndSession { target, tenant } => {
                match listed.overview.end_session(target, tenant).await {
                    Ok(ended) => {
                        let Ended { id, tenant, node } = &ended;
                        let shown = json!({
                            "id": id.to_string(), "tenant": &**tenant, "node": named(node),
                        });
                        let answer = ApiAnswer::ok(json!({ "ended": shown }));
                        Performed { outcome: "ended", ended: Some(ended), answer }
                    }
                    Err(problem) => {
                        let (outcome, answer) = not_ended(problem);
                        Performed { outcome, ended: None, answer }
                    }
                }
            }
        }
    }
}

fn not_ended(problem: EndProblem) -> (&'static str, ApiAnswer) {
    match problem {
        EndProblem::Unknown => {
            let why = "there is no such session: it has ended, or belongs to another tenant";
            ("unknown", ApiAnswer::error(StatusCode::NOT_FOUND, why))
        }
        EndProblem::Ambiguous => {
            let why = "several sessions have ids that begin so; write all 16 digits";
            ("ambiguous", ApiAnswer::error(StatusCode::CONFLICT, why))
        }
        EndProblem::Unconfirmed => {
            let why = "the end of the session was not confirmed: its node or the store did not answer \
                       in time; ask again";
            ("unconfirmed", ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why))
        }
        EndProblem::Unsearched => {
            let why = "the session is on no node, and the store was not searched for it to the end: write \
                       all 16 digits of its id or its `Mcp-Session-Id`, or ask again";
            ("store not searched", ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why))
        }
        EndProblem::Unasked(unasked) => {
            let nodes = unasked.iter().map(|one| format!("{} ({})", one.node, one.reason));
            let nodes = nodes.collect::<Vec<_>>().join(", ");
            let why = format!(
                "the session is on no node that could be asked; it may be on these: {nodes}"
            );
            ("nodes could not be asked", ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why))
        }
    }
}

fn sleeping(session: SleepingSession) -> Value {
    let SleepingSession { id, tenant, revision, client, is_released } = session;
    json!({
        "id": id.to_string(),
        "tenant": &*tenant,
        "revision": Some(revision).filter(|revision| !revision.is_empty()),
        "client": Some(client).filter(|client| !client.is_empty()),
        "released": is_released,
    })
}

/// The name of a node for operators.
pub(crate) fn named(node: &str) -> &str {
    if node.is_empty() { NAMELESS } else { node }
}

fn names(unasked: Vec<Unasked>) -> Vec<Value> {
    let one = |one: Unasked| json!({ "node": named(&one.node), "reason": one.reason });
    unasked.into_iter().map(one).collect()
}

fn node(node: NodeSummary) -> Value {
    let linked: Vec<&str> = node.linked.iter().map(|name| named(name)).collect();
    json!({
        "name": named(&node.name),
        "incarnation": node.incarnation,
        "address": &*node.address,
        "sessions": node.sessions,
        "draining": node.is_draining,
        "linked": linked,
        "self": node.is_this,
        "version": node.version,
        "ready": node.reasons.as_ref().map(Vec::is_empty),
        "reasons": node.reasons,
    })
}

fn session(node: &str, session: SessionSummary) -> Value {
    let SessionSummary { id, tenant, principal, revision, client, activity } = session;
    json!({
        "id": id.to_string(),
        "tenant": &*tenant,
        "principal": principal.map(|principal| format!("{principal:016x}")),
        "node": named(node),
        "revision": Some(revision).filter(|revision| !revision.is_empty()),
        "client": Some(client).filter(|client| !client.is_empty()),
        "at_node_secs": activity.map(|activity| activity.at_node_secs),
        "idle_secs": activity.map(|activity| activity.idle_secs),
        "requests": activity.map(|activity| activity.requests),
        "streams": activity.map(|activity| activity.streams),
    })
}

fn read_limit(written: &str) -> Result<usize, Unreadable> {
    match written.parse() {
        Ok(limit @ 1..=PAGE_MAX) => Ok(limit),
        _ => {
            let why = format!("write ?limit= and a number from 1 to {PAGE_MAX}");
            Err(Unreadable::Parameter(why))
        }
    }
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(String::from)
}

/// The values of these parameters. Any other parameter, or one that comes twice, is refused: an operator
/// who wrote `tenat` would otherwise see the sessions of all tenants.
fn parameters<const N: usize>(
    query: &str,
    known: [&str; N],
) -> Result<[Option<String>; N], Unreadable> {
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = known.iter().position(|known| *known == name);
        let value = decoded(value).filter(|value| !value.is_empty());
        match (place, value) {
            (Some(place), Some(value)) if values[place].is_none() => values[place] = Some(value),
            (Some(_), _) => {
                let why = format!("write ?{name}= once, with a value");
                return Err(Unreadable::Parameter(why));
            }
            (None, _) => {
                let why = match known.join(", ") {
                    known if known.is_empty() => "there are no parameters here".to_owned(),
                    known => format!("the parameters are {known}; write only these"),
                };
                return Err(Unreadable::Parameter(why));
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, target: &str) -> Result<ApiRequest, Unreadable> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        ApiRequest::read(&method, path, query)
    }

    #[test]
    fn requests_are_read_and_wrong_ones_say_what_to_write() {
        let page = |tenant: Option<&str>, after, limit| {
            let query = SessionQuery { tenant: tenant.map(Into::into), after, limit };
            Ok(ApiRequest::Sessions(query))
        };
        assert_eq!(read(Method::GET, "/v1/nodes"), Ok(ApiRequest::Nodes));
        assert_eq!(
            read(Method::HEAD, "/v1/tenants"),
            Ok(ApiRequest::Tenants(TenantsQuery::default()))
        );
        assert_eq!(read(Method::GET, "/v1/sessions"), page(None, None, PAGE));
        let after = ShortId::parse("00000000000000ff");
        let all = "/v1/sessions?tenant=a%2Db&after=00000000000000ff&limit=7";
        assert_eq!(read(Method::GET, all), page(Some("a-b"), after, 7));
        let refused = |method: Method, wrong: &str, word: &str| {
            let Err(Unreadable::Parameter(why)) = read(method, wrong) else {
                panic!("{wrong} was read")
            };
            assert!(why.contains(word), "{wrong}: {why}");
        };
        for (wrong, word) in [
            ("/v1/sessions?tenat=a", "tenant, limit, after"),
            ("/v1/sessions?tenant=a&tenant=b", "once"),
            ("/v1/sessions?tenant=", "value"),
            ("/v1/sessions?limit=0", "1 to 1000"),
            ("/v1/sessions?limit=1001", "1 to 1000"),
            ("/v1/sessions?limit=-1", "1 to 1000"),
            ("/v1/sessions?after=ff", "16 hexadecimal"),
            ("/v1/sessions?after=%00", "16 hexadecimal"),
            ("/v1/sessions?after=0.7", "16 hexadecimal"),
            ("/v1/sessions?sleeping=yes", "sleeping=true"),
            ("/v1/sessions?sleeping=true&limit=0", "1 to 1000"),
            ("/v1/sessions?sleeping=true&after=0123456789abcdef", "`next`"),
            ("/v1/nodes?all=1", "no parameters"),
            ("/v1/tenants?limit=0", "1 to 1000"),
            ("/v1/tenants?tenant=a", "limit, after"),
        ] {
            refused(Method::GET, wrong, word);
        }
        for (wrong, word) in [
            ("/v1/accounts?tenant=a", "subject"),
            ("/v1/accounts?subject=a", "tenant"),
            ("/v1/accounts?tenant=a&subject=b&user=c", "issuer, backend"),
        ] {
            refused(Method::DELETE, wrong, word);
        }
        let unlink = read(Method::DELETE, "/v1/accounts?tenant=a&subject=b%20c").unwrap();
        assert_eq!(unlink.user(), Some(("a".into(), "b c".to_owned())));
        assert_eq!((unlink.role(), &*unlink.object()), (Role::Operate, "all backends"));
        assert_eq!(read(Method::GET, "/v1/accounts"), Err(Unreadable::Method("DELETE")));
        assert_eq!(read(Method::POST, "/v1/nodes"), Err(Unreadable::Method("GET, HEAD")));
        assert_eq!(read(Method::GET, "/v1/sessions/x"), Err(Unreadable::Method("DELETE")));
        for unknown in ["/v1/", "/v1/node", "/v1/nodes/", "/v2/nodes", "/v1/sessions%2Fx"] {
            assert_eq!(read(Method::DELETE, unknown), Err(Unreadable::Path), "{unknown}");
        }
    }

    #[test]
    fn the_sessions_of_no_node_have_pages_of_their_own() {
        let asked = read(Method::GET, "/v1/sessions?sleeping=true&tenant=a&after=5461.7&limit=9");
        let after = ScanCursor { part: 5_461, position: 7 };
        let query = SleepingQuery { tenant: Some("a".into()), after, limit: 9 };
        assert_eq!(asked, Ok(ApiRequest::Sleeping(query)));
        let all = read(Method::GET, "/v1/sessions?sleeping=false").unwrap();
        assert!(matches!(all, ApiRequest::Sessions(_)), "{all:?}");
    }

    #[test]
    fn a_session_to_end_is_named_and_no_hostile_id_is_one() {
        let id = "7f0c1a52-5a36-4a5e-9c0e-0d1f8f1f2a3b-node1";
        let read = |target: &str| read(Method::DELETE, target);
        assert!(read(&format!("/v1/sessions/{id}")).is_ok());
        assert!(read("/v1/sessions/0123456789abcdef?tenant=a").is_ok());
        let shown = format!("{:?}", read(&format!("/v1/sessions/{id}")).unwrap());
        assert!(!shown.contains("7f0c1a52"), "{shown}");
        for hostile in [
            "/v1/sessions/",
            "/v1/sessions/%00",
            "/v1/sessions/a%20b",
            "/v1/sessions/a%0d%0aX:%20y",
            "/v1/sessions/%ff%fe",
            "/v1/sessions/0123456789abcdef",
            "/v1/sessions/01234567",
            "/v1/sessions/x?tenant=a&tenant=b",
            &format!("/v1/sessions/{}", "x".repeat(129)),
        ] {
            let refused = matches!(read(hostile), Err(Unreadable::Parameter(_)));
            assert!(refused, "{hostile}");
        }
    }
}
