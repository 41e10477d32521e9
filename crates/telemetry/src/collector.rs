//! Requests to the collector of spans and metrics: bounded in time and bytes, one at a time for each
//! thread that sends. Never called by a thread that serves clients.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::OtlpSettings;
use crate::otlp::OtlpError;

/// Most bytes of a response that are read.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// The least time between two lines of the log about a collector that fails.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Sends requests to the collector.
#[derive(Debug)]
pub(crate) struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
    /// Drives the requests on the thread that sends them. `None` only while this is dropped.
    runtime: Option<Runtime>,
    purpose: Purpose,
    failing: Mutex<Failing>,
}

/// What requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Spans and metrics, sent at intervals. A request that fails is lost, and the log has a line of it.
    Telemetry,
    /// Records, often. Their sender repeats what fails, and reports it.
    Records,
}

/// What the log was told of a collector that fails.
#[derive(Debug, Default)]
struct Failing {
    reported_at: Option<Instant>,
    /// Requests in vain since the last one that succeeded.
    requests: u64,
}

impl Collector {
    pub(crate) fn new(settings: &OtlpSettings, purpose: Purpose) -> Result<Self, OtlpError> {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = HttpsConnectorBuilder::new();
        let is_tls = settings.endpoint.starts_with("https:");
        let tls = if is_tls && settings.ca.is_empty() {
            tls.with_provider_and_native_roots(provider).map_err(OtlpError::Certificates)?
        } else {
            // If nothing is sent over TLS, no certificates are read.
            let roots = if is_tls { authorities(&settings.ca)? } else { RootCertStore::empty() };
            let config = ClientConfig::builder_with_provider(provider);
            let config = config.with_safe_default_protocol_versions().map_err(OtlpError::Tls)?;
            let config = config.with_root_certificates(roots);
            tls.with_tls_config(config.with_no_client_auth())
        };
        let timeout = Duration::from_millis(settings.timeout_ms);
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(timeout));
        // Calls may wait for the answer.
        tcp.set_nodelay(true);
        let connector = tls.https_or_http().enable_http1().wrap_connector(tcp);
        // A connection makes no progress between two requests, since no thread drives it then. So
        // each request has its own, unless the next one follows soon: if the collector has closed the
        // connection meanwhile, the client sees that before it sends.
        let kept = usize::from(purpose == Purpose::Records);
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(kept).build(connector);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client, timeout, runtime: Some(runtime), purpose, failing: Mutex::default() })
    }

    /// Posts a message of OTLP, as [`Self::send`].
    pub(crate) fn post(
        &self,
        url: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<Response<Bytes>, SendError> {
        let mut request = Request::post(url).header(CONTENT_TYPE, "application/x-protobuf");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        self.send(request.body(body).map_err(SendError::Request)?)
    }

    /// Sends one request, and waits for the response. Blocks the thread.
    pub(crate) fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        let Some(runtime) = &self.runtime else { return Err(SendError::Ended) };
        let answer = async {
            let response = self.client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|_| SendError::Body)?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let sent = runtime.block_on(async { timeout(self.timeout, answer).await });
        let sent = sent.unwrap_or(Err(SendError::Late));
        if self.purpose == Purpose::Records {
            return sent;
        }
        match &sent {
            Ok(response) if response.status().is_success() => self.note_success(),
            Ok(response) => self.note_failure(&format!("the status is {}", response.status())),
            Err(error) => self.note_failure(&innermost(error)),
        }
        sent
    }

    fn note_success(&self) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if failing.reported_at.take().is_some() {
            let requests = failing.requests;
            tracing::info!(requests, "the collector of `otlp.endpoint` accepts requests again");
        }
        failing.requests = 0;
    }

    fn note_failure(&self, why: &str) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.requests += 1;
        if failing.reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            failing.reported_at = Some(Instant::now());
            tracing::warn!(
                error = why,
                requests = failing.requests,
                "spans and metrics were not sent: the collector of `otlp.endpoint` failed; the node \
                 goes on without it, and counts what is lost"
            );
        }
    }
}

/// Why a request to the collector failed. No text has a part of a response or of a header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No connection, or one that broke.
    #[error("no connection")]
    Connection(#[from] hyper_util::client::legacy::Error),
    /// No response in time.
    #[error("it did not answer within `otlp.timeout_ms`")]
    Late,
    /// A response that broke off or is too long.
    #[error("its response is longer than 64 KiB, or broke off")]
    Body,
    /// The settings make no request.
    #[error("no request can be made")]
    Request(#[source] hyper::http::Error),
    /// The node stops.
    #[error("the exporter has ended")]
    Ended,
}

impl SendError {
    /// The text of the innermost cause.
    pub(crate) fn innermost(&self) -> String {
        innermost(self)
    }
}

/// The certificates of a PEM file.
fn authorities(pem: &str) -> Result<RootCertStore, OtlpError> {
    let wrong = |why: &dyn std::fmt::Display| OtlpError::Authority(why.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() { Err(wrong(&"the file holds none")) } else { Ok(roots) }
}

/// The text of the innermost cause.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[async_trait]
impl HttpClient for Collector {
    /// Called by the thread that exports spans, which has nothing else to do meanwhile.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        Ok(self.send(request)?)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // The last user may be a thread of a runtime, which must not wait for another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
