//! Requests to issuers: bounded in time and bytes. Redirects are not followed: an issuer must not send
//! this node to another server.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use fairness::{Blocks, MessagePermits};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body;
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
    pub(crate) async fn get(&self, issuer: &Arc<str>, url: &str) -> Result<Bytes, Failed> {
        self.send(issuer, Request::get(url), Bytes::new()).await
    }

    /// The response to a form, which a client with this id and secret posts.
    pub(crate) async fn post_form(
        &self,
        issuer: &Arc<str>,
        url: &str,
        (id, secret): (&str, &str),
        form: String,
    ) -> Result<Bytes, Failed> {
        // RFC 6749, section 2.3.1.
        let pair = format!("{}:{}", form_encoded(id), form_encoded(secret));
        let request = Request::post(url)
            .header(AUTHORIZATION, format!("Basic {}", BASE64.encode(pair)))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(issuer, request, form.into()).await
    }

    async fn send(
        &self,
        issuer: &Arc<str>,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Bytes, Failed> {
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
            whole(issuer, response.into_body()).await
        };
        timeout(REQUEST, answer).await.unwrap_or(Err(Failed::Late))
    }
}

/// Reads a whole body. Its pieces need the permits of the worker, so that they delay the calls of tenants little,
/// however short they are.
async fn whole<E: std::error::Error + 'static>(
    issuer: &Arc<str>,
    mut body: impl Body<Data = Bytes, Error = E> + Unpin,
) -> Result<Bytes, Failed> {
    let (mut read, mut permits) = (Blocks::default(), MessagePermits::default());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| sending(&error))?.into_data() else { continue };
        if read.len() + piece.len() > RESPONSE_BYTES_MAX {
            return Err(Failed::Long);
        }
        permits.next_piece(issuer, piece.len()).await;
        read.add(&piece);
    }
    Ok(read.join(issuer).await)
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
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::rc::Rc;

    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// How a body of so many bytes ends that arrive one by one, each at once; and the ticks until it has ended.
    async fn read_one_by_one(bytes: usize) -> (Result<usize, Failed>, usize) {
        let frames = stream::iter(0..bytes)
            .map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))));
        let (ticks, issuer) = (Rc::new(Cell::new(0)), "https://auth.example.com".into());
        let count = async {
            loop {
                tokio::task::yield_now().await;
                ticks.set(ticks.get() + 1);
            }
        };
        let read = tokio::select! {
            biased;
            read = whole(&issuer, StreamBody::new(frames)) => read,
            () = count => unreachable!("it counts without an end"),
        };
        (read.map(|read| read.len()), ticks.get())
    }

    #[tokio::test]
    async fn a_body_in_short_pieces_needs_permits() {
        let (read, ticks) = read_one_by_one(400).await;
        assert_eq!(read.ok(), Some(400));
        // One for every eight pieces, perhaps two in a tick.
        assert!(ticks >= 400 / 8 / 2, "{ticks} ticks");
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_at_its_first_byte_too_many() {
        let (read, _) = read_one_by_one(RESPONSE_BYTES_MAX).await;
        assert_eq!(read.ok(), Some(RESPONSE_BYTES_MAX));
        let (read, _) = read_one_by_one(RESPONSE_BYTES_MAX + 1).await;
        assert!(matches!(read, Err(Failed::Long)), "{read:?}");
    }

    #[test]
    fn a_secret_is_encoded_as_in_a_form() {
        assert_eq!(form_encoded("a+b c:%é"), "a%2Bb+c%3A%25%C3%A9");
    }
}
