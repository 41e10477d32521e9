//! The frames that two nodes exchange on a link.
//!
//! A link carries calls in one direction: the node that opened it calls, the other replies. It
//! begins with hello, challenge, proof and welcome, in this order. A field number is never reused:
//! nodes of neighbouring versions are connected while a cluster is upgraded. Each frame follows its
//! length, as Protocol Buffers delimit messages.

use bytes::{Bytes, BytesMut};
use prost::Message as _;

/// One message on a link.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Frame {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16")]
    pub(crate) kind: Option<Kind>,
}

/// The content of a frame. A receiver ignores kinds that it does not know.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Kind {
    /// Caller: its identity.
    #[prost(message, tag = "1")]
    Hello(Greeting),
    /// Callee: its identity. The caller must prove itself first.
    #[prost(message, tag = "2")]
    Challenge(Greeting),
    /// Caller: the proof that it knows the secret.
    #[prost(bytes = "bytes", tag = "3")]
    Proof(Bytes),
    /// Callee: the proof that it knows the secret. Calls may begin.
    #[prost(bytes = "bytes", tag = "4")]
    Welcome(Bytes),
    /// Caller: a new call.
    #[prost(message, tag = "5")]
    Open(Open),
    /// Callee: the call was not started and never will be.
    #[prost(uint64, tag = "6")]
    NotStarted(u64),
    /// Callee: a reply of a call.
    #[prost(message, tag = "7")]
    Reply(Reply),
    /// Callee: the call has no further replies.
    #[prost(uint64, tag = "8")]
    End(u64),
    /// Callee: the node that handled the call was lost. Sent by a node that relays the call.
    #[prost(uint64, tag = "9")]
    Failed(u64),
    /// Caller: the call is cancelled, since its request is gone.
    #[prost(uint64, tag = "10")]
    Cancel(u64),
    /// Caller: the callee may send this many more reply frames.
    #[prost(message, tag = "11")]
    Credit(Credit),
    /// Caller: a ping. A callee that receives none for too long treats its caller as gone.
    #[prost(message, tag = "12")]
    Ping(()),
    /// Callee: the response to a ping.
    #[prost(message, tag = "13")]
    Pong(()),
    /// Callee: a goodbye. The caller closes the link.
    #[prost(message, tag = "14")]
    Bye(Bye),
    /// Callee: the call, or a reply to it, exceeds the bound of a message. The call has ended.
    #[prost(message, tag = "15")]
    TooLarge(TooLarge),
    /// Caller: the next piece of a call whose `Open` announced more.
    #[prost(message, tag = "16")]
    OpenMore(Piece),
}

/// The most bytes of a message in one frame. A longer message is sent in several frames, and frames
/// of other calls are sent between them. Such a frame and its header have the size of one write of
/// a connection (64 KiB).
pub const PIECE_BYTES_MAX: usize = (64 << 10) - crate::FRAME_OVERHEAD_BYTES;

/// Splits the next piece off a message. Copies nothing. Returns the piece and how many bytes
/// remain in `message`.
pub(crate) fn split_piece(message: &mut Bytes) -> (Bytes, u64) {
    if message.len() <= PIECE_BYTES_MAX {
        return (std::mem::take(message), 0);
    }
    let piece = message.split_to(PIECE_BYTES_MAX);
    (piece, message.len() as u64)
}

impl Kind {
    /// Appends the frame and its length, as the wire has them.
    pub(crate) fn write_to(self, out: &mut BytesMut) {
        let frame = Frame::from(self);
        let bytes = frame.encoded_len();
        out.reserve(bytes + prost::length_delimiter_len(bytes));
        // `BytesMut` grows as needed, so this cannot fail.
        let _ = frame.encode_length_delimited(out);
    }
}

impl From<Kind> for Frame {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

/// Identifies the sending node. Its nonce is used once.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Greeting {
    #[prost(fixed64, tag = "1")]
    pub(crate) incarnation: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) nonce: Bytes,
    /// The interval of the caller's pings, in milliseconds.
    #[prost(uint64, tag = "3")]
    pub(crate) ping_ms: u64,
    /// The address at which peers reach the sender; empty if no peer connects to it.
    #[prost(string, tag = "4")]
    pub(crate) address: String,
    /// Caller: the connection carries no calls; the caller only waits for its end.
    #[prost(bool, tag = "5")]
    pub(crate) watches: bool,
    /// The oldest payload version that the sender reads.
    #[prost(uint32, tag = "6")]
    pub(crate) oldest_version: u32,
    /// The newest payload version; 0 if the sender's program announces none.
    #[prost(uint32, tag = "7")]
    pub(crate) newest_version: u32,
}

/// A new call. Its id is used once per link.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Open {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// The number of `Reply` frames that the callee may send before the first credit.
    #[prost(uint32, tag = "2")]
    pub(crate) window: u32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
    /// The bytes of the call that follow in `OpenMore` frames. The call starts with the last one.
    #[prost(uint64, tag = "4")]
    pub(crate) rest: u64,
}

/// The next piece of a call.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Piece {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) body: Bytes,
    /// The bytes that follow in further pieces.
    #[prost(uint64, tag = "3")]
    pub(crate) rest: u64,
}

/// A message that exceeds the bound of its sender or receiver.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct TooLarge {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// The bound that the message exceeds, in bytes.
    #[prost(uint64, tag = "2")]
    pub(crate) bytes_max: u64,
}

/// A reply of a call, or a piece of one. Each frame takes one credit.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) body: Bytes,
    /// The call has no further replies; no `End` follows. Set only on the last piece.
    #[prost(bool, tag = "3")]
    pub(crate) last: bool,
    /// The bytes of this reply that follow in further `Reply` frames of the call.
    #[prost(uint64, tag = "4")]
    pub(crate) rest: u64,
}

/// The number of further `Reply` frames that the callee may send for a call.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Credit {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) more: u32,
}

/// The last frame of a link.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Bye {
    /// The caller did not prove that it knows the secret.
    #[prost(bool, tag = "1")]
    pub(crate) unproven: bool,
}
