//! How much is read of a connection at a time.
//!
//! A client may send requests ahead of the one that is served. The HTTP layer (actix-http 3.20) decodes all
//! that its buffer of 128 KiB holds at once, and answers in one run those that need not wait: several hundred
//! take 10 ms and more, in which the worker serves no other client. With a full buffer it wakes the task of the
//! connection in each run until the request that is served is answered. And it answers `Connection: close`
//! while the body of a later request has arrived in part. So it is given one request at a time. What was read
//! beyond the end of a request is held back, and the rest waits in the kernel.

use crate::framing::Due;

/// The most bytes that are read in a run while a head is due: most requests are shorter, and are read in one
/// run.
const HEAD_RUN_BYTES: u64 = 4 << 10;

/// The most bytes of a body that are read in a run. The buffer that they are read into grows, and its new pages
/// cost more than what is read: 128 KiB took 0.1 ms, in each of hundreds of connections.
const BODY_RUN_BYTES: u64 = 32 << 10;

/// The most bytes that are read beyond a request. They show that its client sends further ones ahead, or that it
/// is gone.
const BEYOND_BYTES: u64 = 512;

/// What a connection may read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayRead {
    /// So many bytes, at least one.
    Bytes(u64),
    /// Nothing in this run of its task.
    NextRun,
    /// Nothing until the request is answered. Meanwhile it is not noticed if the client goes away.
    WhenAnswered,
}

impl MayRead {
    /// What may be read if so many bytes were read in this run. `is_ahead`: bytes of a further request are
    /// held back.
    pub(crate) fn of(due: Due, in_run: u64, is_ahead: bool) -> Self {
        let beyond = if is_ahead { 0 } else { BEYOND_BYTES };
        let bytes = match due {
            Due::Nothing if is_ahead => return Self::WhenAnswered,
            Due::Nothing => beyond,
            Due::Head | Due::Unknown => HEAD_RUN_BYTES.saturating_sub(in_run),
            Due::Bytes(left) => {
                BODY_RUN_BYTES.saturating_sub(in_run).min(left.saturating_add(beyond))
            }
            Due::Chunks(_) => BODY_RUN_BYTES.saturating_sub(in_run),
        };
        if bytes == 0 { Self::NextRun } else { Self::Bytes(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Chunks;

    #[test]
    fn a_body_is_read_in_parts_and_little_beyond_it() {
        let of = |left, in_run, is_ahead| MayRead::of(Due::Bytes(left), in_run, is_ahead);
        assert_eq!(of(1 << 20, 768, false), MayRead::Bytes(32_000));
        assert_eq!(of(1 << 20, 1 << 15, false), MayRead::NextRun);
        assert_eq!(of(1, 0, false), MayRead::Bytes(513));
        assert_eq!(of(1, 0, true), MayRead::Bytes(1));
        assert_eq!(of(u64::MAX, 0, false), MayRead::Bytes(1 << 15));
        let chunks = Due::Chunks(Chunks::FirstDigit);
        assert_eq!(MayRead::of(chunks, 768, false), MayRead::Bytes(32_000));
        assert_eq!(MayRead::of(chunks, 1 << 16, false), MayRead::NextRun);
    }

    #[test]
    fn nothing_is_read_behind_a_request_once_another_one_came_ahead() {
        assert_eq!(MayRead::of(Due::Nothing, 1 << 16, false), MayRead::Bytes(512));
        assert_eq!(MayRead::of(Due::Nothing, 0, true), MayRead::WhenAnswered);
    }

    #[test]
    fn heads_are_read_in_small_parts() {
        for due in [Due::Head, Due::Unknown] {
            assert_eq!(MayRead::of(due, 4_000, false), MayRead::Bytes(96));
            assert_eq!(MayRead::of(due, 4_096, true), MayRead::NextRun);
        }
    }
}
