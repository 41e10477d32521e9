//! How far streams of the tenant's server were read, so that the next owner can request the rest.
//!
//! A position is written with an entry of the same append as the message that was read last. So what a
//! next owner requests begins behind the last message that the log holds.

use std::collections::BTreeMap;

use protocol::{Method, Position, ProgressToken, RequestId};
use serde::{Deserialize, Serialize};

use crate::exchange::Exchange;

/// Most streams that belong to no request; the positions of further ones are not kept.
const STREAMS_MAX: usize = 64;
/// Most positions that wait for an entry; at the limit the oldest is dropped.
const UNWRITTEN_MAX: usize = 256;

/// How far one stream was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamPosition {
    /// The request that it belongs to, if any.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub(crate) about: Option<RequestId>,
    #[serde(rename = "p")]
    pub(crate) position: Position,
}

impl StreamPosition {
    /// About the bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        32 + self.position.bytes()
    }

    fn is_of_same_stream(&self, other: &Self) -> bool {
        self.about == other.about
            && (self.about.is_some() || self.position.stream == other.position.stream)
    }
}

/// What the next owner needs to wait for the response to a request that it has not sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Resumable {
    #[serde(rename = "m")]
    method: Box<str>,
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<ProgressToken>,
    /// How far its stream was read, if the server has said.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<Position>,
}

impl Resumable {
    /// `None` for a request whose response changes the session: its parameters are not kept.
    pub(crate) fn of(exchange: &Exchange) -> Option<Box<Self>> {
        let changes = matches!(
            exchange.method,
            Method::Initialize | Method::SetLevel | Method::Subscribe | Method::Unsubscribe
        );
        let token = exchange.progress.as_ref().map(|pace| pace.token.clone());
        let (method, position) = (exchange.method.as_str().into(), exchange.position.clone());
        (!changes).then(|| Box::new(Self { method, token, position: position.map(|p| *p) }))
    }

    /// About the bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        32 + self.position.as_ref().map_or(0, Position::bytes)
    }

    pub(crate) fn method(&self) -> Method {
        Method::from(&*self.method)
    }
}

/// The positions of the streams that belong to no request, and those that no entry has yet.
#[derive(Default)]
pub(crate) struct Positions {
    /// As the log has them, by stream.
    standalone: BTreeMap<Box<str>, Box<str>>,
    /// Oldest first.
    unwritten: Vec<StreamPosition>,
}

impl Positions {
    pub(crate) fn restored(standalone: impl IntoIterator<Item = Position>) -> Option<Self> {
        let mut positions = Self::default();
        standalone.into_iter().for_each(|position| positions.note_standalone(position));
        (!positions.standalone.is_empty()).then_some(positions)
    }

    /// A stream was read so far; an entry is to have it.
    pub(crate) fn note_read(&mut self, read: StreamPosition) {
        self.unwritten.retain(|former| !former.is_of_same_stream(&read));
        if self.unwritten.len() >= UNWRITTEN_MAX {
            self.unwritten.remove(0);
        }
        self.unwritten.push(read);
    }

    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// The newest position that no entry has, for an entry.
    pub(crate) fn take_unwritten(&mut self) -> Option<StreamPosition> {
        self.unwritten.pop()
    }

    /// The log has this position of a stream that belongs to no request.
    pub(crate) fn note_standalone(&mut self, Position { stream, at }: Position) {
        if self.standalone.len() < STREAMS_MAX || self.standalone.contains_key(&stream) {
            self.standalone.insert(stream, at);
        }
    }

    /// The positions of streams that belong to no request.
    pub(crate) fn standalone(&self) -> impl Iterator<Item = Position> {
        let standalone = self.standalone.iter();
        standalone.map(|(stream, at)| Position { stream: stream.clone(), at: at.clone() })
    }
}
