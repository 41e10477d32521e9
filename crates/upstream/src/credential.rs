//! The token with which requests to one upstream server are authorized.
//!
//! [`Credential`] gets it from an authorization server when a request needs it, keeps it until it expires, and gets
//! another one if the server refuses it. The requests to the authorization server obey the rules for
//! addresses of the backend, are bounded in time and bytes, and follow no redirect.

mod answer;
mod authority;
mod discovery;
mod exchanges;
mod fetch;
mod problem;
mod refresh;
mod settings;
mod source;
mod token;

use std::any::Any;
use std::io;
use std::sync::Arc;

use hyper::header::{HeaderMap, WWW_AUTHENTICATE};

use protocol::{UpstreamToken, UpstreamTokens};

use self::answer::Fetched;
use self::authority::Authority;
use self::exchanges::{Exchange, Exchanges};
pub use self::problem::{CredentialProblem, OauthCode};
pub use self::settings::{ClientAuth, CredentialSetting, CredentialSettings, Grant, Secret};
use self::source::TokenSource;
pub(crate) use self::token::Token;
use crate::metrics::{self, CLIENT_CREDENTIALS};
use crate::settings::HttpSettings;
use crate::url::Url;

/// The token of one backend at this node, or those of its users. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Credential {
    authority: Arc<Authority>,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// The token of the node.
    Own(Arc<TokenSource>),
    /// A token of each user.
    OfClients { backend: Arc<str>, exchanges: Arc<Exchanges> },
}

impl Credential {
    /// The credential of these settings, which have no problem; `None` if they have none. `name` is that of the
    /// backend.
    pub(crate) fn new(name: &str, settings: &HttpSettings, url: &Url) -> io::Result<Option<Self>> {
        let kind = match settings.credential.grant {
            Grant::None => return Ok(None),
            Grant::ClientCredentials => Kind::Own(Arc::default()),
            Grant::TokenExchange => {
                Kind::OfClients { backend: name.into(), exchanges: Arc::default() }
            }
        };
        Ok(Some(Self { authority: Arc::new(Authority::new(name, settings, url)?), kind }))
    }

    /// Whether each user has a token.
    pub(crate) fn is_of_clients(&self) -> bool {
        matches!(self.kind, Kind::OfClients { .. })
    }

    /// The token for a request with these tokens of its client, or another one than that which the server
    /// refused. Waits for the authorization server if there is none.
    pub(crate) async fn token(
        &self,
        tokens: Option<&UpstreamTokens>,
        refused: Option<&Token>,
    ) -> Result<Token, CredentialProblem> {
        let backend = match &self.kind {
            Kind::Own(source) => return source.token(refused, || self.own()).await,
            Kind::OfClients { backend, .. } => backend,
        };
        let token = tokens.and_then(|tokens| tokens.of(backend));
        let token = token.ok_or(CredentialProblem::NoToken)?;
        let Some(refused) = refused else {
            return Token::parse(&token.text).ok_or(CredentialProblem::Invalid);
        };
        // Only the node that has the client's request can exchange its token again.
        let source = token.source.clone().and_then(|source| source.downcast::<Exchange>().ok());
        source.ok_or(CredentialProblem::Rejected)?.token(Some(refused)).await
    }

    fn own(&self) -> impl Future<Output = Result<Fetched, CredentialProblem>> + Send + use<> {
        let authority = Arc::clone(&self.authority);
        async move {
            let fetched = authority.client_credentials().await;
            metrics::count_token(CLIENT_CREDENTIALS, fetched.as_ref().err());
            fetched
        }
    }

    /// Exchanges the token of a client; `None` if the server needs none of clients.
    pub(crate) fn exchange(
        &self,
        subject: &str,
    ) -> Option<impl Future<Output = Result<UpstreamTokens, CredentialProblem>> + Send + use<>>
    {
        let Kind::OfClients { backend, exchanges } = &self.kind else { return None };
        let backend = Arc::clone(backend);
        let exchange = Arc::new(exchanges.of(&self.authority, subject));
        Some(async move {
            let text = exchange.token(None).await?.text().into();
            let source: Option<Arc<dyn Any + Send + Sync>> = Some(exchange);
            Ok(UpstreamTokens::new(vec![UpstreamToken { backend, text, source }]))
        })
    }
}

/// Whether a response refuses the token of its request: another one may be accepted (RFC 6750, section 3.1).
pub(crate) fn refuses_token(status: u16, headers: &HeaderMap) -> bool {
    let says_invalid = || {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = challenges.filter_map(|value| value.to_str().ok());
        challenges.any(|challenge| challenge.contains("invalid_token"))
    };
    status == 401 || (matches!(status, 400 | 403) && says_invalid())
}
