//! The token with which requests to one upstream server are authorized.
//!
//! [`Credential`] gets it from an authorization server when a request needs it, keeps it until it expires, and gets
//! another one if the server refuses it. The requests to the authorization server obey the rules for
//! addresses of the backend, are bounded in time and bytes, and follow no redirect.

mod answer;
mod authority;
mod discovery;
mod fetch;
mod problem;
mod refresh;
mod settings;
mod source;
mod token;

use std::io;
use std::sync::Arc;

use hyper::header::{HeaderMap, WWW_AUTHENTICATE};

use self::authority::Authority;
pub use self::problem::{CredentialProblem, OauthCode};
pub use self::settings::{ClientAuth, CredentialSetting, CredentialSettings, Grant, Secret};
use self::source::TokenSource;
pub(crate) use self::token::Token;
use crate::metrics::{self, CLIENT_CREDENTIALS};
use crate::settings::HttpSettings;
use crate::url::Url;

/// The token of one backend at this node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Credential {
    authority: Arc<Authority>,
    source: Arc<TokenSource>,
}

impl Credential {
    /// The credential of these settings, which have no problem; `None` if they have none. `name` is for
    /// logs only.
    pub(crate) fn new(name: &str, settings: &HttpSettings, url: &Url) -> io::Result<Option<Self>> {
        match settings.credential.grant {
            Grant::None => Ok(None),
            Grant::ClientCredentials => {
                let authority = Arc::new(Authority::new(name, settings, url)?);
                Ok(Some(Self { authority, source: Arc::default() }))
            }
        }
    }

    /// The token for a request, or another one than that which the server refused. Waits for the
    /// authorization server if there is none.
    pub(crate) async fn token(&self, refused: Option<&Token>) -> Result<Token, CredentialProblem> {
        let fetch = || {
            let authority = Arc::clone(&self.authority);
            async move {
                let fetched = authority.client_credentials().await;
                metrics::count_token(CLIENT_CREDENTIALS, fetched.as_ref().err());
                fetched
            }
        };
        self.source.token(refused, fetch).await
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
