//! What two nodes write to each other on a link.
//!
//! A link carries calls one way: the node that opened it calls, the other replies. It
//! begins with hello, challenge, proof and welcome, in this order. A field number is
//! never used for something else: nodes of neighbouring versions meet while a cluster
//! is being updated. Each frame comes after its length, as Protocol Buffers delimit
//! messages.

use bytes::{Bytes, BytesMut};
use prost::Message as _;

/// One message on a link.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Frame {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16")]
    pub(crate) kind: Option<Kind>,
}

/// What a frame says. A frame of a kind that is not known here is passed over.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Kind {
    /// Caller: who I am.
    #[prost(message, tag = "1")]
    Hello(Greeting),
    /// Callee: who I am; prove yourself first.
    #[prost(message, tag = "2")]
    Challenge(Greeting),
    /// Caller: I know the secret.
    #[prost(bytes = "bytes", tag = "3")]
    Proof(Bytes),
    /// Callee: so do I. Calls may begin.
    #[prost(bytes = "bytes", tag = "4")]
    Welcome(Bytes),
    /// Caller: a new call.
    #[prost(message, tag = "5")]
    Open(Open),
    /// Callee: that call did not begin, and never will.
    #[prost(uint64, tag = "6")]
    NotStarted(u64),
    /// Callee: something that came of a call.
    #[prost(message, tag = "7")]
    Reply(Reply),
    /// Callee: nothing more will come of it.
    #[prost(uint64, tag = "8")]
    End(u64),
    /// Callee: the node that worked on the call was lost. Sent by a node that relays the call.
    #[prost(uint64, tag = "9")]
    Failed(u64),
    /// Caller: the request that made this call is gone; the call is cancelled.
    #[prost(uint64, tag = "10")]
    Cancel(u64),
    /// Caller: so many more replies may come.
    #[prost(message, tag = "11")]
    Credit(Credit),
    /// Caller: are you there? So that a callee that hears nothing knows that its caller is
    /// gone.
    #[prost(message, tag = "12")]
    Ping(()),
    /// Callee: I am.
    #[prost(message, tag = "13")]
    Pong(()),
    /// Callee: this link ends. Close it.
    #[prost(message, tag = "14")]
    Bye(Bye),
    /// Callee: the call, or a reply to it, is larger than a message may be. The call is over.
    #[prost(message, tag = "15")]
    TooLarge(TooLarge),
    /// Caller: the next piece of a call whose `Open` announced more.
    #[prost(message, tag = "16")]
    OpenMore(Piece),
}

/// Most bytes of a message in one frame. A longer message is sent in several frames, and
/// frames of other calls are sent between them. With its header such a frame is as large as
/// what a connection writes at once (64 KiB).
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
        // There is always room.
        let _ = frame.encode_length_delimited(out);
    }
}

impl From<Kind> for Frame {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

/// Identifies the sending node. Its nonce was never sent before.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Greeting {
    #[prost(fixed64, tag = "1")]
    pub(crate) incarnation: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) nonce: Bytes,
    /// Who calls says something so often, in milliseconds.
    #[prost(uint64, tag = "3")]
    pub(crate) ping_ms: u64,
    /// The address that peers are told to reach the speaker at; empty where none does.
    #[prost(string, tag = "4")]
    pub(crate) address: String,
    /// Caller: nothing follows on this connection, whose end is all that the caller waits for.
    #[prost(bool, tag = "5")]
    pub(crate) watches: bool,
    /// The oldest version of payloads that the speaker reads.
    #[prost(uint32, tag = "6")]
    pub(crate) oldest_version: u32,
    /// The newest one; 0 where the speaker's program announces none.
    #[prost(uint32, tag = "7")]
    pub(crate) newest_version: u32,
}

/// A new call. Its id is used once in a link's life.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Open {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// So many `Reply` frames may come before the first credit.
    #[prost(uint32, tag = "2")]
    pub(crate) window: u32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
    /// Bytes of the call that follow in `OpenMore` frames. The call begins with the last one.
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
    /// Bytes that follow in further pieces.
    #[prost(uint64, tag = "3")]
    pub(crate) rest: u64,
}

/// A message that is larger than its sender or receiver allows.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct TooLarge {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// The bound that the message exceeds, in bytes.
    #[prost(uint64, tag = "2")]
    pub(crate) bytes_max: u64,
}

/// Something that came of a call, or a piece of it. Each frame takes one credit.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) body: Bytes,
    /// Nothing more will come of the call; no `End` follows. Only on the last piece.
    #[prost(bool, tag = "3")]
    pub(crate) last: bool,
    /// Bytes of this reply that follow in further `Reply` frames of the call.
    #[prost(uint64, tag = "4")]
    pub(crate) rest: u64,
}

/// So many more `Reply` frames of a call may come.
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
