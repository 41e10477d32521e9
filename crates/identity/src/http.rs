//! Requests to issuers: bounded in time and bytes. Redirects are not followed: an issuer must not send
//! this node to another server.

use std::sync::OnceLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::{Request, http};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use crate::provider;

/// How long a whole request to an issuer may take.
const REQUEST: Duration = Duration::from_secs(5);

/// How long a connection to an issuer may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How long an idle connection to an issuer is kept.
const IDLE: Duration = Duration::from_secs(30);

/// Most idle connections to one issuer.
const IDLE_MAX: usize = 4;

/// Most bytes of a response that are read.
const RESPONSE_BYTES_MAX: usize = 256 << 10;

/// The only status with an answer.
const OK: u16 = 200;

/// Why an issuer was asked in vain. No text has a part of a token or of a response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// No connection, or a connection that broke.
    #[error("{0}")]
    Sending(String),
    /// No answer in time.
    #[error("it did not answer in time")]
    Late,
    /// Another status than 200.
    #[error("the status is {0}")]
    Status(u16),
    /// A body that is too long.
    #[error("the response is longer than 256 KiB")]
    Long,
    /// A body that has another form.
    #[error("the response is not {0}")]
    Form(&'static str),
    /// The metadata is another issuer's (RFC 8414, section 3.3).
    #[error("the metadata names another issuer")]
    OtherIssuer,
    /// The metadata names keys at a URL that is not fetched.
    #[error("`jwks_uri` has no `https:`, and is not on loopback as the issuer is")]
    Insecure,
}

/// The client for all issuers, which is made when the first one is asked: it reads the certificates
/// of the system.
#[derive(Debug, Default)]
pub(crate) struct Http(OnceLock<Option<Client>>);

impl Http {
    /// The client; `None` if it cannot be made.
    pub(crate) fn client(&self) -> Option<&Client> {
        self.0.get_or_init(Client::new).as_ref()
    }
}

/// Sends requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Client(HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Client {
    fn new() -> Option<Self> {
        provider::install();
        let provider = rustls::crypto::ring::default_provider();
        let connector = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider);
        let connector = connector.inspect_err(|error| {
            tracing::error!(
                %error,
                "issuers of tokens cannot be asked; repair the certificates of the system, and restart \
                 the node"
            );
        });
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT));
        let connector = connector.ok()?.https_or_http().enable_http1().wrap_connector(tcp);
        let mut client = HyperClient::builder(TokioExecutor::new());
        client
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX);
        Some(Self(client.build(connector)))
    }

    /// The body at this URL.
    pub(crate) async fn get(&self, url: &str) -> Result<Bytes, Failed> {
        self.send(Request::get(url), Bytes::new()).await
    }

    /// The response to a form, which a client with this id and secret posts.
    pub(crate) async fn post_form(
        &self,
        url: &str,
        (id, secret): (&str, &str),
        form: String,
    ) -> Result<Bytes, Failed> {
        // RFC 6749, section 2.3.1.
        let pair = format!("{}:{}", form_encoded(id), form_encoded(secret));
        let request = Request::post(url)
            .header(AUTHORIZATION, format!("Basic {}", BASE64.encode(pair)))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(request, form.into()).await
    }

    async fn send(&self, request: http::request::Builder, body: Bytes) -> Result<Bytes, Failed> {
        let request = request
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "roundhouse")
            .body(Full::new(body))
            .map_err(|_| Failed::Sending("its URL is malformed".into()))?;
        let answer = async {
            let response = self.0.request(request).await.map_err(|error| sending(&error))?;
            match response.status().as_u16() {
                OK => {}
                other => return Err(Failed::Status(other)),
            }
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            match body {
                Ok(body) => Ok(body.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => Err(Failed::Long),
                Err(error) => Err(sending(&*error)),
            }
        };
        timeout(REQUEST, answer).await.unwrap_or(Err(Failed::Late))
    }
}

/// The innermost cause.
fn sending(error: &(dyn std::error::Error + 'static)) -> Failed {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Failed::Sending(cause.to_string())
}

/// The text as `application/x-www-form-urlencoded` has it.
pub(crate) fn form_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_encoded_as_in_a_form() {
        assert_eq!(form_encoded("a+b c:%é"), "a%2Bb+c%3A%25%C3%A9");
    }
}
