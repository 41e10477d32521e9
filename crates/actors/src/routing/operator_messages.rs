//! The messages of operators between nodes, as Protocol Buffers.
//!
//! As for all messages between nodes, a field number is never reused. The fields of a reply have
//! numbers that those of [`super::messages::Reply`] do not have, by which another program answers.

/// A call of an operator.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperatorCall {
    #[prost(oneof = "CallKind", tags = "1, 2, 3, 4")]
    pub(super) kind: Option<CallKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum CallKind {
    #[prost(message, tag = "1")]
    List(List),
    #[prost(message, tag = "2")]
    End(End),
    /// Tell the version and the readiness.
    #[prost(message, tag = "3")]
    State(()),
    /// Tell the figures of the tenants.
    #[prost(message, tag = "4")]
    Tenants(()),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct List {
    #[prost(string, optional, tag = "1")]
    pub(super) tenant: Option<String>,
    #[prost(fixed64, optional, tag = "2")]
    pub(super) after: Option<u64>,
    #[prost(uint32, tag = "3")]
    pub(super) limit: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct End {
    #[prost(string, optional, tag = "1")]
    pub(super) tenant: Option<String>,
    #[prost(oneof = "Named", tags = "2, 3")]
    pub(super) named: Option<Named>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Named {
    #[prost(string, tag = "2")]
    Id(String),
    #[prost(message, tag = "3")]
    Short(ShortIds),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ShortIds {
    #[prost(fixed64, tag = "1")]
    pub(super) from: u64,
    #[prost(fixed64, tag = "2")]
    pub(super) to: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperatorReply {
    #[prost(oneof = "ReplyKind", tags = "32, 33, 34, 35")]
    pub(super) kind: Option<ReplyKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum ReplyKind {
    #[prost(message, tag = "32")]
    Page(Page),
    #[prost(message, tag = "33")]
    Outcome(Outcome),
    #[prost(message, tag = "34")]
    State(State),
    #[prost(message, tag = "35")]
    Tenants(Tenants),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Page {
    #[prost(message, repeated, tag = "1")]
    pub(super) sessions: Vec<Session>,
    #[prost(bool, tag = "2")]
    pub(super) has_more: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Session {
    #[prost(fixed64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) tenant: String,
    #[prost(fixed64, optional, tag = "3")]
    pub(super) principal: Option<u64>,
    #[prost(string, tag = "4")]
    pub(super) revision: String,
    #[prost(string, tag = "5")]
    pub(super) client: String,
    #[prost(message, optional, tag = "6")]
    pub(super) activity: Option<Doing>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Doing {
    #[prost(uint64, tag = "1")]
    pub(super) at_node_secs: u64,
    #[prost(uint64, tag = "2")]
    pub(super) idle_secs: u64,
    #[prost(uint64, tag = "3")]
    pub(super) requests: u64,
    #[prost(uint64, tag = "4")]
    pub(super) streams: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Outcome {
    #[prost(oneof = "OutcomeKind", tags = "1, 2, 3, 4")]
    pub(super) kind: Option<OutcomeKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum OutcomeKind {
    #[prost(message, tag = "1")]
    Ended(EndedSession),
    #[prost(message, tag = "2")]
    NotHere(()),
    #[prost(message, tag = "3")]
    Ambiguous(()),
    #[prost(message, tag = "4")]
    Unconfirmed(()),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EndedSession {
    #[prost(fixed64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) tenant: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct State {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    /// Whether the node knows its readiness, which is in `reasons`.
    #[prost(bool, tag = "2")]
    pub(super) knows: bool,
    #[prost(string, repeated, tag = "3")]
    pub(super) reasons: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Tenants {
    #[prost(message, repeated, tag = "1")]
    pub(super) tenants: Vec<Tenant>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Tenant {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, required, tag = "2")]
    pub(super) sessions: Amount,
    #[prost(message, required, tag = "3")]
    pub(super) session_bytes: Amount,
    #[prost(uint64, tag = "4")]
    pub(super) stored_bytes: u64,
    #[prost(message, required, tag = "5")]
    pub(super) children: Amount,
    /// Absent if the settings of the node do not have the tenant; the program before never sends it.
    #[prost(message, optional, tag = "6")]
    pub(super) settings: Option<SettingsOfTenant>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SettingsOfTenant {
    #[prost(string, repeated, tag = "1")]
    pub(super) auth: Vec<String>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) keys: Option<u64>,
    #[prost(string, repeated, tag = "3")]
    pub(super) hosts: Vec<String>,
    #[prost(bool, tag = "4")]
    pub(super) is_leaving: bool,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Amount {
    #[prost(uint64, tag = "1")]
    pub(super) used: u64,
    #[prost(uint64, optional, tag = "2")]
    pub(super) max: Option<u64>,
}
