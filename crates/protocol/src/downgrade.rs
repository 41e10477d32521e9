//! What a side of an older revision must not see, and what it gets instead.
//!
//! Every function answers `None` where nothing has to change, and costs nothing where
//! the revision has everything.

use bytes::Bytes;

use crate::{Method, Revision};

/// A result of the server's as a client of this revision may see it (TOOL-09, PRM-03).
pub fn result_for_client(_revision: Revision, _method: &Method, _result: &[u8]) -> Option<Bytes> {
    None
}

/// The parameters of a request to the client as a client of this revision may see them (ELI-02).
pub fn request_for_client(_revision: Revision, _method: &Method, _params: &[u8]) -> Option<Bytes> {
    None
}

/// A result of the client's as a server of this revision may see it (SMP-04).
pub fn result_for_server(_revision: Revision, _method: &Method, _result: &[u8]) -> Option<Bytes> {
    None
}
