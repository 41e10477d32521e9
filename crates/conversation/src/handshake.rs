//! The handshake with the client: its phase and its results.

use std::sync::Arc;

use protocol::{
    ClientCapabilities, ErrorCode, InitializeParams, Message, Method, Mirrored, Rejection, Request,
    Revision, ServerCapabilities,
};
use thin_vec::ThinVec;

use crate::Definition;
use crate::state::State;
use crate::step_context::StepContext;

/// Longest state of a link, in bytes. A link with a longer one is not carried on. That of a single server
/// over HTTP has 6 KiB at most, that of several servers together 64 KiB.
const SAVED_LINK_BYTES_MAX: usize = 64 << 10;

/// The phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Nothing was posted.
    New,
    /// `initialize` waits for its answer.
    Initializing,
    /// `initialize` is answered, and the client has not sent `initialized`.
    Answered,
    /// The handshake is done.
    Live,
    /// The session has ended, or left its owner.
    Over,
}

/// The handshake of a session, from its first message to its end.
pub(crate) struct Handshake {
    phase: Phase,
    client: Option<Box<Client>>,
}

/// What the handshake established about the client, and about its server.
pub(crate) struct Client {
    pub(crate) revision: Revision,
    pub(crate) capabilities: ClientCapabilities,
    /// The stored parameters of its `initialize`, for every handshake with the server.
    pub(crate) params: Arc<[u8]>,
    /// The notifications of list changes that the answer to its `initialize` declared: it gets no
    /// other from the session. `None` if that is not known: its owner was lost before it saved them.
    pub(crate) promised_lists: Option<ThinVec<Method>>,
    pub(crate) server_has_tools: bool,
    /// The definition of the server that made the last handshake.
    pub(crate) definition: Option<Definition>,
    /// What the link saved for the next owner.
    saved_link: Option<Arc<str>>,
    /// The definition of the server to which the link is, or was, opened.
    chosen: Option<Definition>,
    /// The server is another one than that of the last handshake.
    is_replaced: bool,
}

impl Client {
    /// Reads the client's `initialize`.
    pub(crate) fn read(
        context: &StepContext<'_>,
        message: &Message,
        request: &Request,
        mirrored: Option<&Mirrored>,
    ) -> Result<Self, Rejection> {
        let id = Some(request.id.clone());
        let params = request.params().unwrap_or_default();
        let params_read = InitializeParams::read(&params).map_err(|r| r.of(id.clone()))?;
        let most = context.limits().initialize_bytes_max;
        let kept = protocol::kept_initialize_params(&params, most).ok_or_else(|| {
            let message = format!(
                "`protocolVersion`, `capabilities` and `clientInfo` together are longer than \
                 {most} bytes (sessions.initialize_bytes_max); send less, or raise it"
            );
            Rejection::new(ErrorCode::InvalidParams, message).of(id)
        })?;
        let revision = Revision::negotiate(&params_read.protocol_version);
        if revision.has_mirrored_headers() && !context.is_duplex() {
            Mirrored::check(mirrored, message, None)?;
        }
        Ok(Self {
            revision,
            capabilities: params_read.capabilities,
            params: Arc::from(&kept[..]),
            promised_lists: None,
            server_has_tools: false,
            definition: None,
            saved_link: None,
            chosen: None,
            is_replaced: false,
        })
    }

    /// The client of a session that another owner had, as that owner saved it.
    pub(crate) fn restored(
        revision: Revision,
        capabilities: ClientCapabilities,
        params: Arc<[u8]>,
        state: &State<'_>,
    ) -> Self {
        Self {
            revision,
            capabilities,
            params,
            promised_lists: state.promised_lists(),
            server_has_tools: state.tools,
            definition: state.definition,
            saved_link: state.link.as_deref().map(Arc::from),
            chosen: None,
            is_replaced: false,
        }
    }
}

impl Handshake {
    pub(crate) fn new() -> Self {
        Self { phase: Phase::New, client: None }
    }

    /// The handshake that another owner made; `is_live` where the client sent `initialized`.
    pub(crate) fn restored(client: Client, is_live: bool) -> Self {
        let phase = if is_live { Phase::Live } else { Phase::Answered };
        Self { phase, client: Some(Box::new(client)) }
    }

    /// `initialize` was received, and waits for the server.
    pub(crate) fn begin_initialize(&mut self, client: Client) {
        self.client = Some(Box::new(client));
        self.phase = Phase::Initializing;
    }

    /// `initialize` is answered.
    pub(crate) fn note_answered(&mut self) {
        self.phase = Phase::Answered;
    }

    /// The client sent `initialized`. Returns false if that is not the next step.
    pub(crate) fn note_initialized(&mut self) -> bool {
        let completes = self.phase == Phase::Answered;
        if completes {
            self.phase = Phase::Live;
        }
        completes
    }

    /// The session is over.
    pub(crate) fn note_over(&mut self) {
        self.phase = Phase::Over;
    }

    /// Was nothing posted yet?
    pub(crate) fn is_new(&self) -> bool {
        self.phase == Phase::New
    }

    /// Does `initialize` wait for its answer?
    pub(crate) fn is_initializing(&self) -> bool {
        self.phase == Phase::Initializing
    }

    /// Is `initialize` answered?
    pub(crate) fn is_initialized(&self) -> bool {
        self.phase >= Phase::Answered
    }

    /// Is `initialize` answered, and has the client not sent `initialized`?
    pub(crate) fn awaits_initialized(&self) -> bool {
        self.phase == Phase::Answered
    }

    /// Is the handshake done?
    pub(crate) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Is the session over?
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub(crate) fn client(&self) -> Option<&Client> {
        self.client.as_deref()
    }

    /// The bytes of the stored parameters of `initialize`, and of what the link saved.
    pub(crate) fn bytes(&self) -> usize {
        let of_link = |client: &Client| client.saved_link.as_ref().map_or(0, |state| state.len());
        self.client.as_ref().map_or(0, |client| client.params.len() + of_link(client))
    }

    /// What the link saved for the next owner.
    pub(crate) fn saved_link(&self) -> Option<&Arc<str>> {
        self.client.as_ref()?.saved_link.as_ref()
    }

    /// The link saved this, or nothing is left of what it saved. Returns whether that changes anything.
    pub(crate) fn set_saved_link(&mut self, state: Option<Arc<str>>) -> bool {
        let state = state.filter(|state| (1..=SAVED_LINK_BYTES_MAX).contains(&state.len()));
        let Some(client) = &mut self.client else { return false };
        let is_changed = client.saved_link != state;
        client.saved_link = state;
        is_changed
    }

    /// The negotiated revision; before the negotiation, the assumed one.
    pub(crate) fn revision(&self) -> Revision {
        self.client.as_ref().map_or(Revision::ASSUMED, |client| client.revision)
    }

    /// Whether the client can be asked to open URLs, and knows the error that asks for it (ELI-01, ELI-05).
    pub(crate) fn takes_urls(&self) -> bool {
        self.client.as_ref().is_some_and(|client| {
            client.revision.has_elicitation_modes() && client.capabilities.elicitation_url()
        })
    }

    /// The notifications that the client gets when it may have missed a change.
    pub(crate) fn promised_lists(&self) -> ThinVec<Method> {
        let promised = self.client.as_ref().and_then(|client| client.promised_lists.clone());
        promised.unwrap_or_default()
    }

    /// The definition of the server that made the last handshake.
    pub(crate) fn definition(&self) -> Option<Definition> {
        self.client.as_ref()?.definition
    }

    /// The link is opened to a server with this definition. `is_replaced`: it is known to be another
    /// one than that of the former link. Returns whether it differs from that of the last handshake,
    /// as far as is known.
    pub(crate) fn note_backend(&mut self, chosen: Option<Definition>, is_replaced: bool) -> bool {
        let Some(client) = &mut self.client else { return false };
        let differs = client.definition.zip(chosen).is_some_and(|(former, new)| former != new);
        client.chosen = chosen;
        // Until a handshake is done: the first start of a new server may fail.
        client.is_replaced |= is_replaced || differs;
        client.is_replaced
    }

    /// The notifications for the client if the server that has made the handshake is another one than
    /// before: those that the client was promised, of the lists that the server has. Empty when they
    /// were taken.
    pub(crate) fn take_changed_lists(&mut self, server: &ServerCapabilities) -> ThinVec<Method> {
        let Some(client) = &mut self.client else { return ThinVec::new() };
        if !std::mem::take(&mut client.is_replaced) {
            return ThinVec::new();
        }
        let promised = client.promised_lists.iter().flatten();
        promised.filter(|list| server.has_list_of(list)).cloned().collect()
    }

    pub(crate) fn server_has_tools(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.server_has_tools)
    }

    /// The server declared its capabilities. Returns whether that changes what is to be saved: what the
    /// first handshake established is saved when the client sends `initialized`.
    pub(crate) fn note_server(&mut self, server: &ServerCapabilities) -> bool {
        let is_first = self.is_initializing();
        let Some(client) = &mut self.client else { return false };
        let (has_tools, definition) = (server.tools(), client.chosen);
        let changes = client.promised_lists.is_none()
            || client.server_has_tools != has_tools
            || client.definition != definition;
        (client.server_has_tools, client.definition) = (has_tools, definition);
        client.promised_lists.get_or_insert_with(|| server.list_changed_methods().into());
        changes && !is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialized_completes_the_handshake_only_after_the_answer() {
        let mut handshake = Handshake::new();
        assert!(!handshake.note_initialized());
        handshake.note_answered();
        assert!(handshake.is_initialized() && !handshake.is_live());
        assert!(handshake.note_initialized());
        assert!(handshake.is_live());
        assert!(!handshake.note_initialized());
    }
}
