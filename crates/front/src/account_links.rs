//! The pages by which a user links an account at an upstream server: `/{tenant}/link/{id}`, and two to which
//! authorization servers send the browser back.
//!
//! The user who opens a link has to be the one whose client it was made for: an attacker who sends a link of their own
//! to another user must not get tokens for that one's account. So the browser signs in at the issuer of the tenant
//! first, and the token that comes of it is verified as that of a client is.

use std::sync::Arc;

use actix_http::header::{self, HeaderName, HeaderValue};
use actix_http::{Method, RequestHead, Response, StatusCode};
use actors::{CredentialProblem, Linking, PendingLink, Returned, Step, random, tag};
use identity::TokenDigest;
use percent_encoding::percent_decode_str;
use tenants::Tenant;

use crate::authentication::Authentication;
use crate::body::Body;
use crate::front_request::Service;
use crate::route::LinkPage;

/// Begins the name of the cookie that binds the steps of a link to one browser.
const COOKIE: &str = "roundhouse-link-";

/// Begins it over TLS: then browsers accept it from this host alone, and no other host sets it.
const OF_THIS_HOST: &str = "__Host-";

/// How long the browser keeps it, in seconds: as long as a link counts.
const COOKIE_SECS: u32 = 600;

/// Longest cookie, id or state that is looked at.
const TEXT_BYTES_MAX: usize = 128;

const GONE: &str =
    "This link has expired or was used. Call the tool again: the client gets another link.";
const OTHER_BROWSER: &str = "This step has expired, or another browser has begun it. Open the link again, in one \
                             browser that accepts cookies.";
const OTHER_USER: &str = "This link was made for another user. If you did not ask for it yourself, close this page: \
                          nothing was linked.";
const LINKED: &str =
    "Your account is linked. Close this page, and call the tool again in your client.";
const NOT_AGREED: &str =
    "The authorization server did not agree. Open the link again to try once more.";

/// What a page answers.
enum Reply {
    /// Another page comes next. The cookie of the link is set if it is new.
    Redirect { to: String, cookie: Option<(String, String)> },
    /// The last one.
    Text(StatusCode, String),
}

/// Serves the pages.
pub(crate) struct AccountLinks<'a> {
    service: &'a Service,
    authentication: &'a Authentication,
    tenant: &'a Arc<Tenant>,
    /// Where the pages are; `None` if the node does not know where it is reached.
    links_at: Option<String>,
}

impl<'a> AccountLinks<'a> {
    /// The pages of this tenant.
    pub(crate) fn new(
        service: &'a Service,
        authentication: &'a Authentication,
        tenant: &'a Arc<Tenant>,
    ) -> Self {
        let links_at = service.urls.links(&tenant.name);
        Self { service, authentication, tenant, links_at }
    }

    /// Answers a request for a page.
    pub(crate) async fn answer(&self, head: &RequestHead, page: LinkPage<'_>) -> Response<Body> {
        if head.method != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Open this page in a browser.");
        }
        let replied = match page {
            LinkPage::Open(id) => self.open(head, id).await,
            LinkPage::SignedIn => self.signed_in(head).await,
            LinkPage::Agreed => self.agreed(head).await,
        };
        match replied {
            Ok(Reply::Redirect { to, cookie }) => self.redirect(&to, cookie.as_ref()),
            Ok(Reply::Text(status, message)) => text(status, &message),
            Err(problem) => text(StatusCode::BAD_GATEWAY, &format!("{problem}.")),
        }
    }

    /// The user opens the link: the browser signs in.
    async fn open(&self, head: &RequestHead, id: &str) -> Result<Reply, CredentialProblem> {
        let vault = self.service.handle.vault();
        if id.len() > TEXT_BYTES_MAX {
            return Ok(gone());
        }
        let Some((linking, _)) = self.find(id).await? else { return Ok(gone()) };
        let (Some(at), Some(resource)) = (self.at("signed-in"), self.resource()) else {
            return Ok(gone());
        };
        // If the browser has opened this link before, that one may still come back.
        let name = format!("{}{}", self.cookies(), tag(id));
        let cookie = match cookie(head, &name) {
            Some(cookie) => cookie,
            None => random(&*vault)?,
        };
        let to = linking.sign_in_url(&*vault, id, &cookie, &at, &resource).await?;
        Ok(Reply::Redirect { to, cookie: Some((name, cookie)) })
    }

    /// The browser has signed in: if it is the same user, that user agrees.
    async fn signed_in(&self, head: &RequestHead) -> Result<Reply, CredentialProblem> {
        let vault = self.service.handle.vault();
        let Some((step, code, issuer, cookie)) = self.step(head, false).await? else {
            return Ok(other_browser());
        };
        let Some(code) = code else { return Ok(not_agreed()) };
        let Some((linking, link)) = self.find(&step.link).await? else { return Ok(gone()) };
        let (Some(at), Some(resource), Some(rules)) =
            (self.at("signed-in"), self.resource(), self.tenant.access.oauth())
        else {
            return Ok(gone());
        };
        let returned = Returned { code: &code, issuer: issuer.as_deref(), redirect_uri: &at };
        let token = linking.signed_in(&step, returned, &resource).await?;
        let digest = TokenDigest::of(&token);
        let verified = self.authentication.verify(self.tenant, rules, &token, digest).await;
        let user = verified
            .ok()
            .map(|credential| self.service.handle.user(&self.tenant.name, &credential.principal));
        if user.as_ref() != Some(&link.user) {
            tracing::warn!(tenant = &*self.tenant.name, "a link was opened by another user");
            return Ok(Reply::Text(StatusCode::FORBIDDEN, OTHER_USER.to_owned()));
        }
        let Some(agreed) = self.at("agreed") else { return Ok(gone()) };
        let to = linking.agree_url(&*vault, &step.link, &cookie, &agreed).await?;
        Ok(Reply::Redirect { to, cookie: None })
    }

    /// The user has agreed: the node gets the tokens.
    async fn agreed(&self, head: &RequestHead) -> Result<Reply, CredentialProblem> {
        let Some((step, code, issuer, _)) = self.step(head, true).await? else {
            return Ok(other_browser());
        };
        let Some(code) = code else { return Ok(not_agreed()) };
        let Some((linking, link)) = self.find(&step.link).await? else { return Ok(gone()) };
        let Some(at) = self.at("agreed") else { return Ok(gone()) };
        let returned = Returned { code: &code, issuer: issuer.as_deref(), redirect_uri: &at };
        linking.agreed(&self.service.handle.vault(), &step, &link, returned).await?;
        Ok(Reply::Text(StatusCode::OK, LINKED.to_owned()))
    }

    /// The step that the browser comes back to, once: with the code, the issuer and the cookie.
    async fn step(
        &self,
        head: &RequestHead,
        is_signed_in: bool,
    ) -> Result<Option<(Step, Option<String>, Option<String>, String)>, CredentialProblem> {
        let query = head.uri.query().unwrap_or_default();
        let parameter = |name: &str| {
            let value =
                query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            percent_decode_str(value?).decode_utf8().ok().map(String::from)
        };
        let Some(state) = parameter("state") else { return Ok(None) };
        let of_link = state.split_once('.').map_or("", |(tag, _)| tag);
        let cookie = cookie(head, &format!("{}{of_link}", self.cookies()));
        let Some(cookie) = cookie else { return Ok(None) };
        let step = Step::take(&*self.service.handle.vault(), &state, &cookie).await?;
        let step = step.filter(|step| step.is_signed_in == is_signed_in);
        Ok(step.map(|step| (step, parameter("code"), parameter("iss"), cookie)))
    }

    /// A link of this tenant, and how its server is linked.
    async fn find(&self, id: &str) -> Result<Option<(Linking, PendingLink)>, CredentialProblem> {
        let link = PendingLink::find(&*self.service.handle.vault(), id).await?;
        Ok(link.and_then(|link| {
            let mut linkings = self.service.handle.linkings(&self.tenant.name).into_iter();
            Some((linkings.find(|linking| linking.server() == link.server)?, link))
        }))
    }

    /// The URL of a page.
    fn at(&self, page: &str) -> Option<String> {
        Some(format!("{}{page}", self.links_at.as_ref()?))
    }

    /// What the token of the browser is for: the endpoint of the tenant, as that of a client.
    fn resource(&self) -> Option<String> {
        let rules = self.tenant.access.oauth()?;
        self.service.urls.audiences(self.tenant, rules).into_iter().next()
    }

    /// What the names of the cookies begin with.
    fn cookies(&self) -> String {
        let prefix = if self.is_over_tls() { OF_THIS_HOST } else { "" };
        format!("{prefix}{COOKIE}")
    }

    fn is_over_tls(&self) -> bool {
        self.links_at.as_ref().is_some_and(|links| links.starts_with("https:"))
    }

    fn redirect(&self, to: &str, cookie: Option<&(String, String)>) -> Response<Body> {
        let Ok(to) = HeaderValue::from_str(to) else {
            return text(StatusCode::BAD_GATEWAY, "The authorization server has no usable URL.");
        };
        let mut response = text(StatusCode::FOUND, "");
        response.headers_mut().insert(header::LOCATION, to);
        if let Some((name, cookie)) = cookie {
            let secure = if self.is_over_tls() { "; Secure" } else { "" };
            let set = format!(
                "{name}={cookie}; Path=/; Max-Age={COOKIE_SECS}; HttpOnly; SameSite=Lax{secure}"
            );
            if let Ok(set) = HeaderValue::from_str(&set) {
                response.headers_mut().insert(header::SET_COOKIE, set);
            }
        }
        response
    }
}

fn gone() -> Reply {
    Reply::Text(StatusCode::NOT_FOUND, GONE.to_owned())
}

fn other_browser() -> Reply {
    Reply::Text(StatusCode::FORBIDDEN, OTHER_BROWSER.to_owned())
}

fn not_agreed() -> Reply {
    Reply::Text(StatusCode::FORBIDDEN, NOT_AGREED.to_owned())
}

/// The cookie with this name.
fn cookie(head: &RequestHead, name: &str) -> Option<String> {
    let all = head.headers.get_all(header::COOKIE).filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).map(str::trim);
    let found = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    found.filter(|cookie| cookie.len() <= TEXT_BYTES_MAX).map(str::to_owned)
}

/// A page that no other page may show, no cache keeps, and that sends its URL nowhere.
fn text(status: StatusCode, message: &str) -> Response<Body> {
    let body = match message.is_empty() {
        true => Body::Empty,
        false => Body::whole(format!("{message}\n")),
    };
    let mut response = Response::with_body(status, body);
    for (name, value) in [
        ("content-type", "text/plain; charset=utf-8"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ] {
        let name = HeaderName::from_static(name);
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
