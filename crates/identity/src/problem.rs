//! Why a token is not accepted.

/// Why a token is not accepted. Each text may be shown to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenProblem {
    /// Not a token of a form that is accepted.
    #[error("the token has another form")]
    Form,
    /// A JWT that is no access token.
    #[error("the token is no access token")]
    Kind,
    /// No key of the issuer is for this algorithm.
    #[error("the algorithm of the token is not accepted")]
    Algorithm,
    /// The issuer does not have the key.
    #[error("the key of the token is unknown")]
    Key,
    /// The signature is another token's, or no signature.
    #[error("the signature of the token is wrong")]
    Signature,
    /// Another issuer has made the token.
    #[error("the token is of another issuer")]
    Issuer,
    /// The token is for another server.
    #[error("the token is for another audience")]
    Audience,
    /// The token has ended.
    #[error("the token has expired")]
    Expired,
    /// The token counts later.
    #[error("the token is not valid yet")]
    NotYet,
    /// The token names no client.
    #[error("the token names neither a subject nor a client")]
    NoSubject,
    /// The token has more scopes than are kept.
    #[error("the token has more than 256 scopes, or more than 8 KiB of them")]
    Scopes,
    /// The token has no end.
    #[error("the token does not say when it expires")]
    NoEnd,
    /// The token lives longer than a revocation surely counts.
    #[error("the token is valid for more than 30 days; have its issuer make shorter ones")]
    Lasts,
    /// The issuer says that the token does not count.
    #[error("the token is not valid")]
    Inactive,
    /// The issuer could not be asked. Not a fault of the token.
    #[error("the issuer of the token cannot be reached; try again later")]
    Unavailable,
}
