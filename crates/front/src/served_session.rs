//! What the record of an exchange says of its session.

use actors::{HandshakeSummary, ReplyStream};
use telemetry::ExchangeRecord;

/// Notes what replies say of their session, and of the node that owns it.
pub(crate) fn note_served(record: &mut ExchangeRecord, replies: &ReplyStream) {
    record.owner = replies.owner_name();
    if let Some(handshake) = replies.handshake() {
        note_handshake(record, handshake);
    }
}

/// Notes the handshake of the session.
pub(crate) fn note_handshake(record: &mut ExchangeRecord, handshake: &HandshakeSummary) {
    record.revision = Some(handshake.revision.as_str());
    record.client.clone_from(&handshake.client);
}
