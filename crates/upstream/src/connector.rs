//! Connections to permitted addresses, opened within a bounded time.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;
use tower_service::Service;

use crate::networks::Networks;
use crate::settings::HttpSettings;
use crate::tracked::Tracked;
use crate::url::address_of;

/// How long an idle connection is kept: for less than by most servers, which close it after 5 s, perhaps
/// while a request is on its way.
pub(crate) const IDLE: Duration = Duration::from_secs(4);

/// How long a connection may be idle before the kernel asks whether its peer exists, how long it waits
/// for each answer, and how many it may miss: a stream has no other sign of that.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// No address of the host is permitted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no address of the host is permitted (`allow_networks`)")]
pub(crate) struct NotPermitted;

/// The connection took too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no connection within `connect_ms`")]
pub(crate) struct TooLate;

/// Resolves names, and returns permitted addresses only.
#[derive(Clone)]
pub(crate) struct PermittedAddresses {
    inner: GaiResolver,
    networks: Arc<Networks>,
}

impl Service<Name> for PermittedAddresses {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxedError;
    type Future = Boxed<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolved = self.inner.call(name);
        let networks = Arc::clone(&self.networks);
        Box::pin(async move {
            let permitted: Vec<_> =
                resolved.await?.filter(|address| networks.permit(address.ip())).collect();
            match permitted.is_empty() {
                true => Err(NotPermitted.into()),
                false => Ok(permitted.into_iter()),
            }
        })
    }
}

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Connector {
    inner: HttpsConnector<HttpConnector<PermittedAddresses>>,
    networks: Arc<Networks>,
    within: Duration,
}

impl Connector {
    /// Reads the certificates of the system, if connections are encrypted.
    pub(crate) fn new(settings: &HttpSettings, is_encrypted: bool) -> io::Result<Self> {
        let networks = Arc::new(settings.networks());
        let resolver =
            PermittedAddresses { inner: GaiResolver::new(), networks: Arc::clone(&networks) };
        let mut tcp = HttpConnector::new_with_resolver(resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(KEEPALIVE_TRIES));
        let inner = HttpsConnectorBuilder::new()
            .with_tls_config(tls(is_encrypted)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self { inner, networks, within: settings.connect() })
    }
}

/// The configuration of TLS, which all backends share: it holds the certificates of the system.
fn tls(is_needed: bool) -> io::Result<ClientConfig> {
    static SHARED: OnceLock<ClientConfig> = OnceLock::new();
    let builder = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        builder.with_safe_default_protocol_versions().map_err(io::Error::other)
    };
    if !is_needed {
        return Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    }
    if let Some(shared) = SHARED.get() {
        return Ok(shared.clone());
    }
    let config = builder()?.with_native_roots()?.with_no_client_auth();
    Ok(SHARED.get_or_init(|| config).clone())
}

impl Service<Uri> for Connector {
    type Response =
        Tracked<<HttpsConnector<HttpConnector<PermittedAddresses>> as Service<Uri>>::Response>;
    type Error = BoxedError;
    type Future = Boxed<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // A host that is an address is not resolved, so it is judged here.
        let is_refused = address_of(&uri).is_some_and(|address| !self.networks.permit(address));
        if is_refused {
            return Box::pin(std::future::ready(Err(NotPermitted.into())));
        }
        let connecting = timeout(self.within, self.inner.call(uri));
        Box::pin(async move {
            let connected = connecting.await.unwrap_or_else(|_| Err(TooLate.into()));
            connected.map(Tracked::new)
        })
    }
}

/// Whether an error of the connection is that no address of the host is permitted.
pub(crate) fn caused_by_address(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // The inner error of an I/O error is not its source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if error.is::<NotPermitted>() || inner.is_some_and(|inner| inner.is::<NotPermitted>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    // holds: SEC-20
    #[tokio::test]
    async fn an_address_that_is_no_name_is_judged_as_well() {
        let settings = HttpSettings::new("http://example.com/");
        let mut connector = Connector::new(&settings, false).unwrap();
        for uri in ["http://127.0.0.1:1/", "http://[::ffff:10.0.0.1]/"] {
            let refused = connector.call(uri.parse().unwrap()).await.err().unwrap();
            assert!(refused.is::<NotPermitted>(), "{uri}: {refused}");
        }
    }
}
