//! Requests to authorization servers: to permitted addresses only, bounded in time and bytes. Redirects are
//! not followed: an authorization server must not send this node, with its secret, to another server.

use std::io;
use std::time::Duration;

use budget::Share;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use super::problem::CredentialProblem;
use crate::Failure;
use crate::charge::Charge;
use crate::connector::{Connector, IDLE, caused_by_address};
use crate::content::Content;
use crate::reading;
use crate::settings::HttpSettings;
use crate::url::Url;

/// How long a whole request may take.
const REQUEST: Duration = Duration::from_secs(5);

/// Most bytes of a body that are read.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Most bytes of a head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Most idle connections that are kept, each for [`IDLE`].
const IDLE_MAX: usize = 2;

/// Sends requests.
pub(crate) struct Fetch {
    pool: Pool<Connector, Full<Bytes>>,
    /// The backend, for logs.
    name: String,
    /// What bodies are charged to while they are read.
    share: Share,
}

/// A response.
pub(crate) struct Fetched {
    pub(crate) status: u16,
    /// The body, if it is JSON.
    pub(crate) json: Option<Bytes>,
}

impl Fetch {
    /// With the address rules of this backend. Reads the certificates of the system, if connections
    /// may be encrypted.
    pub(crate) fn new(
        name: &str,
        settings: &HttpSettings,
        share: &Share,
        is_encrypted: bool,
    ) -> io::Result<Self> {
        let mut pool = Pool::builder(TokioExecutor::new());
        pool.pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX);
        let pool = pool.build(Connector::new(settings, is_encrypted)?);
        Ok(Self { pool, name: name.to_owned(), share: share.clone() })
    }

    /// The response to a GET.
    pub(crate) async fn get(&self, url: &Url) -> Result<Fetched, CredentialProblem> {
        let request = Request::get(url.uri().clone()).body(Full::default());
        self.send(url, request).await
    }

    /// The response to a form.
    pub(crate) async fn post_form(
        &self,
        url: &Url,
        authorization: Option<HeaderValue>,
        form: String,
    ) -> Result<Fetched, CredentialProblem> {
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        let mut request = Request::post(url.uri().clone()).header(CONTENT_TYPE, form_type);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        self.send(url, request.body(Full::new(form.into()))).await
    }

    async fn send(
        &self,
        url: &Url,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<Fetched, CredentialProblem> {
        let mut request = request.map_err(|_| CredentialProblem::Invalid)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("roundhouse"));
        let answer = async {
            let response = self.pool.request(request).await.map_err(|error| {
                self.warn(url, &innermost(&error));
                match caused_by_address(&error) {
                    true => CredentialProblem::NotPermitted,
                    false => CredentialProblem::Unavailable,
                }
            })?;
            let status = response.status().as_u16();
            let is_json = Content::of(response.headers()) == Content::Json;
            // Also if there is no room: the response may have a refresh token that replaces the last one.
            let charge = &mut Charge::without_wait(&self.share);
            let (tenant, body) = (self.share.tenant(), response.into_body());
            let body = reading::whole(tenant, body, BODY_BYTES_MAX, charge).await;
            let body = body.map_err(|failure| {
                let (cause, problem) = unread(failure);
                self.warn(url, cause);
                problem
            })?;
            Ok(Fetched { status, json: is_json.then_some(body) })
        };
        timeout(REQUEST, answer).await.unwrap_or_else(|_| {
            self.warn(url, "it did not answer in time");
            Err(CredentialProblem::Unavailable)
        })
    }

    fn warn(&self, url: &Url, cause: &str) {
        tracing::warn!(
            backend = self.name,
            origin = url.origin(),
            cause,
            "a request to an authorization server failed"
        );
    }
}

/// Why a body was not read, for the log and for the session: it is too long, or the connection was lost.
fn unread(failure: Failure) -> (&'static str, CredentialProblem) {
    match failure {
        Failure::TooLarge => ("its response is longer than 64 KiB", CredentialProblem::Invalid),
        _ => ("the connection was lost within its response", CredentialProblem::Unavailable),
    }
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
