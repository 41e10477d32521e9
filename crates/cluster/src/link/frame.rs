//! What two nodes write to each other on a link.
//!
//! A link carries calls one way: the node that opened it calls, the other replies. It
//! begins with hello, challenge, proof and welcome, in this order. A field number is
//! never used for something else: nodes of neighbouring versions meet while a cluster
//! is being updated.

use bytes::Bytes;

/// One message on a link.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Frame {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
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
