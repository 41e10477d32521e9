//! Bounds of what one node keeps of its calls to another, at either end.

/// How much one node keeps of its calls to another.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Calls, those included that wait for the link or for their caller to look.
    pub calls: usize,
    /// Bytes of calls that wait for the link.
    pub waiting_bytes: usize,
    /// Bytes of one call, or of one reply.
    pub message_bytes: usize,
    /// Frames with replies of one call that its caller has not taken. Only where its caller
    /// waits for a reply that arrives in pieces are the pieces not counted, so what one call
    /// keeps here is at most a whole reply and so many frames.
    pub window: u32,
}
