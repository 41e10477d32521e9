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
mod linked;
mod linking;
mod problem;
mod refresh;
mod settings;
mod source;
mod token;
mod turn;
mod vault;

use std::any::Any;
use std::io;
use std::sync::Arc;

use hyper::header::{HeaderMap, WWW_AUTHENTICATE};

use budget::Share;
use protocol::{AccountLink, UpstreamToken, UpstreamTokens};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use self::authority::Authority;
use self::exchanges::{Exchange, Exchanges};
use self::linked::LinkedTokens;
pub use self::linking::{Linking, PendingLink, Returned, Step, random, tag};
pub use self::problem::{CredentialProblem, OauthCode};
use self::refresh::Current;
pub use self::settings::{
    ClientAuth, CredentialSetting, CredentialSettings, Grant, Secret, SignInSettings,
};
use self::source::TokenSource;
pub(crate) use self::token::Token;
pub use self::vault::{Vault, VaultUnavailable};
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
    /// A token of each user. `server`: see [`server_of`].
    OfClients { server: Arc<str>, exchanges: Arc<Exchanges>, linking: Option<Linking> },
}

/// Identifies a user of a tenant at all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserKey {
    /// The name of the user's principal.
    pub name: String,
    /// When the user was revoked last, in milliseconds since 1970, or 0. What was linked before that does not
    /// count. A revocation is forgotten some time after all that was linked before it has expired.
    pub revoked_ms: u64,
}

/// The user of a request.
#[derive(Clone)]
pub struct User {
    /// The token with which the user's client authenticated at this node; `None` if it has none.
    pub token: Option<Arc<str>>,
    /// Identifies the user at the tenant, also at other nodes.
    pub key: UserKey,
    /// Where links are, to which their ids are added; `None` if the node does not know where it is reached.
    pub links_at: Option<Arc<str>>,
    /// Where the tokens of users are kept.
    pub vault: Arc<dyn Vault>,
}

impl Credential {
    /// The credential of these settings, which have no problem; `None` if they have none. `name` is that of the
    /// backend. The tokens of users, and the responses of authorization servers while they are read, are charged to the
    /// tenant's share.
    pub(crate) fn new(
        name: &str,
        settings: &HttpSettings,
        url: &Url,
        share: &Share,
    ) -> io::Result<Option<Self>> {
        let credential = &settings.credential;
        if credential.grant == Grant::None {
            return Ok(None);
        }
        let authority = Arc::new(Authority::new(name, settings, url, share)?);
        if credential.grant == Grant::ClientCredentials {
            return Ok(Some(Self { authority, kind: Kind::Own(Arc::default()) }));
        }
        let (server, exchanges) = (server_of(name, settings, url).into(), Exchanges::new(share));
        let linking = match credential.grant {
            Grant::AuthorizationCode => {
                let issuer = Authority::new(name, &at_issuer(settings), url, share)?;
                Some(Linking::new(&server, &authority, issuer))
            }
            _ => None,
        };
        let kind = Kind::OfClients { server, exchanges: Arc::new(exchanges), linking };
        Ok(Some(Self { authority, kind }))
    }

    /// How users link accounts at the server, if they do.
    pub(crate) fn linking(&self) -> Option<&Linking> {
        match &self.kind {
            Kind::OfClients { linking, .. } => linking.as_ref(),
            Kind::Own(_) => None,
        }
    }

    /// Where the user of a request with these tokens links an account first.
    pub(crate) fn link(&self, tokens: Option<&UpstreamTokens>) -> Option<Arc<AccountLink>> {
        let Kind::OfClients { server, .. } = &self.kind else { return None };
        tokens?.of(server)?.link.clone()
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
        let server = match &self.kind {
            Kind::Own(source) => return source.token(refused, |_| self.own()).await,
            Kind::OfClients { server, .. } => server,
        };
        let token = tokens.and_then(|tokens| tokens.of(server));
        let token = token.ok_or(CredentialProblem::NoToken)?;
        let Some(refused) = refused else {
            return Token::parse(&token.text).ok_or(CredentialProblem::Invalid);
        };
        // Only the node that has the client's request can exchange its token again.
        let source = token.source.clone().ok_or(CredentialProblem::Rejected)?;
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(&source) as _;
        match any.downcast::<Exchange>() {
            Ok(exchange) => exchange.token(Some(refused)).await,
            Err(_) => {
                source.note_refused(&token.text);
                Err(CredentialProblem::Rejected)
            }
        }
    }

    fn own(&self) -> impl Future<Output = Result<Current, CredentialProblem>> + Send + use<> {
        let authority = Arc::clone(&self.authority);
        async move {
            let fetched = authority.client_credentials().await;
            metrics::count_token(CLIENT_CREDENTIALS, fetched.as_ref().err());
            fetched.map(Into::into)
        }
    }

    /// The token of a user, if it has one at this node, or where it gets one; `None` if the server needs none of
    /// users.
    pub(crate) fn exchange(
        &self,
        user: &User,
    ) -> Option<impl Future<Output = Result<UpstreamTokens, CredentialProblem>> + Send + use<>>
    {
        let Kind::OfClients { server, exchanges, linking } = &self.kind else { return None };
        let exchange = match (&user.token, linking) {
            (None, _) => None,
            (Some(subject), None) => Some(exchanges.of(&self.authority, subject)),
            (Some(_), Some(_)) => {
                let tokens = LinkedTokens::new(&user.vault, server, &user.key);
                Some(exchanges.of_account(&self.authority, &user.key, tokens))
            }
        };
        let (backend, linking, user) = (Arc::clone(server), linking.clone(), user.clone());
        Some(async move {
            let exchange = Arc::new(exchange.ok_or(CredentialProblem::NoToken)?);
            let (text, link) = match (exchange.token(None).await, linking) {
                (Err(CredentialProblem::NotLinked), Some(linking)) => {
                    let at = user.links_at.ok_or(CredentialProblem::NotLinked)?;
                    let id = linking.begin(&user.vault, &user.key).await?;
                    let url = format!("{at}{id}");
                    ("".into(), Some(Arc::new(AccountLink { id, url })))
                }
                (token, _) => (token?.text().into(), None),
            };
            let source: Option<Arc<dyn protocol::TokenSource>> = Some(exchange);
            Ok(UpstreamTokens::new(vec![UpstreamToken { backend, text, source, link }]))
        })
    }
}

/// The settings with which users sign in at the issuer of the tenant.
fn at_issuer(settings: &HttpSettings) -> HttpSettings {
    let SignInSettings { client_id, client_secret, scopes, issuer } =
        settings.credential.sign_in.clone();
    let credential = CredentialSettings {
        grant: Grant::AuthorizationCode,
        issuer,
        client_id,
        client_secret,
        scopes,
        client_auth: settings.credential.client_auth,
        // That of the endpoint is added.
        resource: Some(String::new()),
        ..CredentialSettings::default()
    };
    HttpSettings { credential, ..settings.clone() }
}

/// The backend with this name, and the server that its tokens are for. After a change of the settings a link
/// to the former server finds no token that was made for another one.
fn server_of(name: &str, settings: &HttpSettings, url: &Url) -> String {
    let CredentialSettings { issuer, token_url, audience, .. } = &settings.credential;
    let resource = settings.credential.resource_for(url);
    let server = serde_json::json!([settings.url, resource, audience, issuer, token_url]);
    let digest = Sha256::digest(server.to_string());
    let digest: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}#{digest}")
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

#[cfg(test)]
mod tests {
    use budget::Budget;

    use super::*;

    fn of_users(change: impl FnOnce(&mut HttpSettings)) -> Credential {
        let mut settings = HttpSettings::new("https://mcp.example.com/mcp");
        settings.credential = CredentialSettings {
            grant: Grant::TokenExchange,
            issuer: "https://auth.example.com".into(),
            client_id: "node".into(),
            ..CredentialSettings::default()
        };
        change(&mut settings);
        let (url, share) = (Url::parse(&settings.url).unwrap(), Budget::unlimited());
        let share = share.unnamed_share("a");
        Credential::new("a/main", &settings, &url, &share).unwrap().unwrap()
    }

    fn tokens_for(credential: &Credential) -> UpstreamTokens {
        let Kind::OfClients { server, .. } = &credential.kind else { panic!("none of clients") };
        let token = UpstreamToken {
            backend: server.clone(),
            text: "hunter2".into(),
            source: None,
            link: None,
        };
        UpstreamTokens::new(vec![token])
    }

    #[tokio::test]
    async fn a_token_is_for_one_url_resource_and_issuer() {
        let first = of_users(|_| {});
        let tokens = tokens_for(&first);
        assert!(first.token(Some(&tokens), None).await.is_ok());
        let same = of_users(|settings| settings.connections_max = 8);
        assert!(same.token(Some(&tokens), None).await.is_ok());
        type Change = fn(&mut HttpSettings);
        let others: [Change; 4] = [
            |settings| settings.url = "https://mcp.example.com/other".into(),
            |settings| settings.credential.resource = Some("https://other.example.com/".into()),
            |settings| settings.credential.issuer = "https://other.example.com".into(),
            |settings| settings.credential.audience = "other".into(),
        ];
        for change in others {
            let token = of_users(change).token(Some(&tokens), None).await;
            assert_eq!(token.err(), Some(CredentialProblem::NoToken));
        }
    }

    #[tokio::test]
    async fn the_node_that_sent_a_token_gets_word_of_its_refusal() {
        let credential = of_users(|_| {});
        let token = tokens_for(&credential).all()[0].clone();
        let source: Option<Arc<dyn protocol::TokenSource>> =
            Some(Arc::new(protocol::OtherNode::default()));
        let tokens = UpstreamTokens::new(vec![UpstreamToken { source, ..token }]);
        let sent = credential.token(Some(&tokens), None).await.unwrap();
        assert_eq!(tokens.refused().count(), 0);
        let renewed = credential.token(Some(&tokens), Some(&sent)).await;
        assert_eq!(renewed.err(), Some(CredentialProblem::Rejected));
        assert_eq!(tokens.refused().count(), 1);
    }
}
