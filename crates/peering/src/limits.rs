//! The bounds of calls between two nodes, at either end.

/// The bounds of the calls from one node to another.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Calls, including those that wait for the link or whose replies wait for the caller.
    pub calls: usize,
    /// The bytes of calls that wait for the link.
    pub waiting_bytes: usize,
    /// The bytes of one call, or of one reply.
    pub message_bytes: usize,
    /// The reply frames of one call that its caller has not taken. Pieces of a reply for which the
    /// caller waits are not counted, so one call keeps here at most a whole reply and this many
    /// frames.
    pub window: u32,
}
