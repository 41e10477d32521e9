//! Calls and replies of payload version 2, which programs older than decision 0025 write and read.
//!
//! A node that announces no version reads no other. Remove this module in the first release whose
//! predecessor writes version 3.

mod call;
mod reply;
mod wire;

pub(super) use call::{
    decode_call, decode_opening, decode_relayed, encode_call, encode_opening, encode_relayed,
};
pub(super) use reply::{decode_opened, decode_reply, encode_opened, encode_reply};

/// The first byte of every call and every reply. No Protocol Buffers message begins with it: it
/// would be a field with number 0.
pub(super) const VERSION: u8 = 2;
