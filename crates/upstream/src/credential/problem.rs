//! Why there is no token for an upstream server.

/// Why there is no token for an upstream server. The text is for clients: it has no URL, address, or text of
/// the authorization server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialProblem {
    /// The authorization server was not reached, did not answer in time, or failed.
    #[error(
        "the authorization server of the upstream server cannot be reached at present; try again later"
    )]
    Unavailable,
    /// Its addresses are not permitted.
    #[error("the address of the authorization server of the upstream server is not permitted")]
    NotPermitted,
    /// It sent something that is no token response, or metadata that names no token endpoint.
    #[error("the authorization server of the upstream server sent an invalid response")]
    Invalid,
    /// It refuses to exchange the token of a user.
    #[error(
        "the authorization server refused to exchange your token for one of the upstream server ({0})"
    )]
    NotExchanged(OauthCode),
    /// There is no token of the user.
    #[error(
        "the upstream server needs a token of each user, and there is none: the client has no OAuth token, \
         or its exchange was refused"
    )]
    NoToken,
    /// The user has linked no account.
    #[error("you have to link your account at the upstream server first")]
    NotLinked,
    /// As many links of the tenant are pending as may be.
    #[error("too many users of the tenant link accounts at present; try again in ten minutes")]
    TooManyLinks,
    /// A link was opened too often.
    #[error("the link was opened too often; call the tool again in ten minutes")]
    TooManySteps,
    /// The nodes' store, which has the tokens of users, did not answer.
    #[error("the store of the tokens of users cannot be reached at present; try again later")]
    StoreUnavailable,
    /// The server refuses also a token that was fetched just now.
    #[error("the upstream server refuses the tokens of its authorization server")]
    Rejected,
    /// It refuses the node a token.
    #[error("the authorization server refused the node a token for the upstream server ({0})")]
    Refused(OauthCode),
}

impl CredentialProblem {
    /// Whether the same request may succeed after a while.
    pub(crate) fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::StoreUnavailable)
    }

    /// For metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unavailable | Self::StoreUnavailable => "unavailable",
            Self::NotPermitted => "not_permitted",
            Self::Invalid => "invalid",
            Self::Refused(_) | Self::NotExchanged(_) | Self::NoToken | Self::Rejected => "refused",
            Self::NotLinked | Self::TooManySteps | Self::TooManyLinks => "not_linked",
        }
    }
}

/// The reason that an authorization server gives (RFC 6749, section 5.2; RFC 8693, section 2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OauthCode {
    /// The request is malformed, or the subject token is not accepted.
    InvalidRequest,
    /// The client did not authenticate.
    InvalidClient,
    /// The grant is not valid.
    InvalidGrant,
    /// The client may not use this grant.
    UnauthorizedClient,
    /// The server does not have this grant.
    UnsupportedGrantType,
    /// The scopes are not granted.
    InvalidScope,
    /// The target is not known, or not permitted (RFC 8707, RFC 8693).
    InvalidTarget,
    /// The resource owner, or a policy, refused.
    AccessDenied,
    /// Any other.
    Other,
}

impl OauthCode {
    /// The code with this name.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "invalid_request" => Self::InvalidRequest,
            "invalid_client" => Self::InvalidClient,
            "invalid_grant" => Self::InvalidGrant,
            "unauthorized_client" => Self::UnauthorizedClient,
            "unsupported_grant_type" => Self::UnsupportedGrantType,
            "invalid_scope" => Self::InvalidScope,
            "invalid_target" => Self::InvalidTarget,
            "access_denied" => Self::AccessDenied,
            _ => Self::Other,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::InvalidClient => "invalid_client",
            Self::InvalidGrant => "invalid_grant",
            Self::UnauthorizedClient => "unauthorized_client",
            Self::UnsupportedGrantType => "unsupported_grant_type",
            Self::InvalidScope => "invalid_scope",
            Self::InvalidTarget => "invalid_target",
            Self::AccessDenied => "access_denied",
            Self::Other => "another error",
        }
    }
}

impl std::fmt::Display for OauthCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
