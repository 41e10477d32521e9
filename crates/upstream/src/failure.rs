//! Why an exchange failed.

use crate::credential::CredentialProblem;

/// Why an exchange failed. The text is for clients: it has no URL, address, header or payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The addresses of the host are not permitted.
    #[error("the address of the upstream server is not permitted")]
    NotPermitted,
    /// No connection.
    #[error("the upstream server could not be reached")]
    Connect,
    /// No connection in time.
    #[error("the upstream server could not be reached in time")]
    ConnectTimeout,
    /// The server was not reachable, and it is not time to try again.
    #[error("the upstream server cannot be reached at present; try again later")]
    HeldBack,
    /// The exchanges of the backend use all its connections.
    #[error("the connections to the upstream server are all in use; try again later")]
    Busy,
    /// The connection ended, or what came is no HTTP.
    #[error("the connection to the upstream server was lost")]
    Lost,
    /// Nothing was received for too long.
    #[error("the upstream server did not answer in time")]
    Silent,
    /// The tenant keeps as many bytes as it may.
    #[error("the tenant keeps too many bytes for a further message of the upstream server")]
    NoRoom,
    /// A body or an event was too long.
    #[error("the upstream server sent a message that is too large")]
    TooLarge,
    /// A body or an event that is no JSON-RPC message.
    #[error("the upstream server sent something that is not an MCP message")]
    NotAMessage,
    /// A response with a type of content that MCP does not have.
    #[error("the upstream server sent a response that is neither JSON nor an event stream")]
    ContentType,
    /// A redirect that is not followed.
    #[error("the upstream server redirects to another place; its URL has to be corrected")]
    Redirect,
    /// A session id that is not as the specification has it.
    #[error("the upstream server sent an invalid session id")]
    SessionId,
    /// There is no token for it, and nothing was sent.
    #[error("{0}")]
    Credential(CredentialProblem),
}

impl Failure {
    /// Whether the same request may succeed if it is sent again after a while.
    pub(crate) fn is_transient(self) -> bool {
        match self {
            Self::Connect
            | Self::ConnectTimeout
            | Self::HeldBack
            | Self::Busy
            | Self::NoRoom
            | Self::Lost
            | Self::Silent => true,
            Self::Credential(problem) => problem.is_transient(),
            _ => false,
        }
    }

    /// Whether it is a fault of the way to the server, and not of the server.
    pub(crate) fn is_of_transport(self) -> bool {
        matches!(self, Self::Connect | Self::ConnectTimeout | Self::Lost)
    }

    /// For metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NotPermitted => "not_permitted",
            Self::Connect | Self::ConnectTimeout => "unreachable",
            Self::HeldBack => "held_back",
            Self::Busy | Self::NoRoom => "busy",
            Self::Lost => "lost",
            Self::Silent => "timed_out",
            Self::TooLarge | Self::NotAMessage | Self::ContentType | Self::SessionId => "invalid",
            Self::Redirect => "redirected",
            Self::Credential(_) => "no_token",
        }
    }
}
