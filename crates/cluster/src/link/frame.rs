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
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
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
    /// Callee: more should have come of it, but cannot be told.
    #[prost(uint64, tag = "9")]
    Failed(u64),
    /// Caller: whoever made that call is gone.
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
}

impl Kind {
    /// Appends it as it is said.
    pub(crate) fn say(self, out: &mut BytesMut) {
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

/// Who speaks, and something that nobody ever said before.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Greeting {
    #[prost(fixed64, tag = "1")]
    pub(crate) incarnation: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) nonce: Bytes,
    /// Who calls says something so often, in milliseconds.
    #[prost(uint64, tag = "3")]
    pub(crate) ping_ms: u64,
}

/// A new call. Its id is used once in a link's life.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Open {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// So many replies may come before the first credit.
    #[prost(uint32, tag = "2")]
    pub(crate) window: u32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
}

/// Something that came of a call.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) body: Bytes,
    /// Nothing more will come of the call; no `End` follows.
    #[prost(bool, tag = "3")]
    pub(crate) last: bool,
}

/// So many more replies of a call may come.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Credit {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) more: u32,
}

/// The last word on a link.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Bye {
    /// The caller did not prove that it knows the secret.
    #[prost(bool, tag = "1")]
    pub(crate) unproven: bool,
}
