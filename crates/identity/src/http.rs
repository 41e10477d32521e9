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

/// Most bytes of a set of keys that are read.
pub(crate) const KEYS_BYTES_MAX: usize = 256 << 10;

/// Most bytes of another response that are read: of metadata, or of the answer to an introspection. They are parsed by
/// the worker.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 10;

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
    #[error("the response is longer than {0} bytes")]
    Long(usize),
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

/// Sends requests. Cheap to clone. An asker is in whose name permits are asked for, so that what is read delays others
/// little: a tenant, or the place of keys that tenants share.
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

    /// The body at this URL, of at most so many bytes.
    pub(crate) async fn get(
        &self,
        asker: &Arc<str>,
        url: &str,
        bytes_max: usize,
    ) -> Result<Bytes, Failed> {
        self.send(asker, Request::get(url), Bytes::new(), bytes_max).await
    }

    /// The response to a form, which a client with this id and secret posts.
    pub(crate) async fn post_form(
        &self,
        asker: &Arc<str>,
        url: &str,
        (id, secret): (&str, &str),
        form: String,
    ) -> Result<Bytes, Failed> {
        // RFC 6749, section 2.3.1.
        let pair = format!("{}:{}", form_encoded(id), form_encoded(secret));
        let request = Request::post(url)
            .header(AUTHORIZATION, format!("Basic {}", BASE64.encode(pair)))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(asker, request, form.into(), ANSWER_BYTES_MAX).await
    }

    async fn send(
        &self,
        asker: &Arc<str>,
        request: http::request::Builder,
        body: Bytes,
        bytes_max: usize,
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
            whole(asker, response.into_body(), bytes_max).await
        };
        timeout(REQUEST, answer).await.unwrap_or(Err(Failed::Late))
    }
}

/// Reads a whole body of at most so many bytes, with permits, however short its pieces are.
async fn whole<E: std::error::Error + 'static>(
    asker: &Arc<str>,
    mut body: impl Body<Data = Bytes, Error = E> + Unpin,
    bytes_max: usize,
) -> Result<Bytes, Failed> {
    let (mut read, mut permits) = (Blocks::default(), MessagePermits::default());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| sending(&error))?.into_data() else { continue };
        if read.len() + piece.len() > bytes_max {
            return Err(Failed::Long(bytes_max));
        }
        permits.next_piece(asker, piece.len()).await;
        read.add(&piece);
    }
    Ok(read.join(asker).await)
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

    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// What reading 400 pieces of one byte came to, which are all there already.
    struct OneByOne {
        read: Result<Bytes, Failed>,
        taken: usize,
        ticks: usize,
    }

    async fn read_one_by_one(bytes_max: usize) -> OneByOne {
        let (taken, ticks, asker) = (Cell::new(0), Cell::new(0), "a".into());
        let pieces = stream::iter(0..400).map(|_| {
            taken.set(taken.get() + 1);
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x")))
        });
        let count = async {
            loop {
                tokio::task::yield_now().await;
                ticks.set(ticks.get() + 1);
            }
        };
        let read = tokio::select! {
            biased;
            read = whole(&asker, StreamBody::new(pieces), bytes_max) => read,
            () = count => unreachable!("it counts without an end"),
        };
        OneByOne { read, taken: taken.get(), ticks: ticks.get() }
    }

    #[tokio::test]
    async fn a_body_in_short_pieces_needs_permits() {
        let OneByOne { read, ticks, .. } = read_one_by_one(400).await;
        assert_eq!(read.unwrap(), vec![b'x'; 400]);
        // One for every eight pieces, perhaps two in a tick.
        assert!(ticks >= 400 / 8 / 2, "{ticks} ticks");
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_at_its_first_byte_too_many() {
        let OneByOne { read, taken, .. } = read_one_by_one(100).await;
        assert!(matches!(read, Err(Failed::Long(100))), "{read:?}");
        assert_eq!(taken, 101);
    }

    #[test]
    fn a_secret_is_encoded_as_in_a_form() {
        assert_eq!(form_encoded("a+b c:%é"), "a%2Bb+c%3A%25%C3%A9");
    }
}
