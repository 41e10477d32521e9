//! Requests for which the client was asked something elsewhere than on their own stream.
//!
//! A server request goes on the stream of the call that it is for. Where that call has no
//! stream, since its connection is lost and no event was sent, it goes on the client's GET
//! stream, and no log says which call it was for. The next owner must not run that call again,
//! or the client would be asked twice. So its id is part of the state that is saved before the
//! server request is sent.

use crate::entry::ServerRequestId;
use crate::session::Session;

impl Session {
    /// A server request goes on the GET stream: notes for which requests. It is sent once the
    /// record holds their ids, so that the next owner knows them before the client is asked.
    #[cold]
    pub(crate) fn keep_asking_calls(&mut self, server_request: ServerRequestId) {
        let Some(call) = self.call_of_server_request(server_request) else { return };
        for exchange in self.exchanges.iter().filter(|exchange| exchange.call == call) {
            self.versions.changed |= self.askers.keep(&exchange.id);
        }
        self.hold_back();
    }
}
