//! How much is read of a connection at a time.
//!
//! A client may send requests ahead of the one that is served. The HTTP layer (actix-http 3.20) decodes all
//! that its buffer of 128 KiB holds at once, and answers in one run those that need not wait: several hundred
//! take 10 ms and more, in which the worker serves no other client. With a full buffer it wakes the task of the
//! connection in each run until the request that is served is answered. And it answers `Connection: close`
//! while the body of a later request has arrived in part. So it is given one request at a time. What was read
//! beyond the end of a request is held back, and the rest waits in the kernel.

/// The most bytes that are read in a run while a head is due: most requests are shorter, and are read in one
/// run.
const RUN_BYTES: u64 = 4 << 10;

/// The most bytes of a body that are read in a run. The buffer that they are read into grows, and its new pages
/// cost more than what is read: 128 KiB took 0.1 ms, in each of hundreds of connections.
const BODY_RUN_BYTES: u64 = 32 << 10;

/// The most bytes that are read beyond a request, and in a run while a head is due that cannot be told from
/// what is ahead of it: two or three short requests.
const BEYOND_BYTES: u64 = 512;

/// The body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes, or none.
    Bytes(u64),
    /// It ends with its last chunk, or its head was not understood. `is_collected`: it is read meanwhile.
    Unknown { is_collected: bool },
}

impl Body {
    /// One of which no byte is collected yet.
    pub(crate) const UNKNOWN: Self = Self::Unknown { is_collected: false };
}

/// What is due on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A head.
    Head,
    /// A body, of which so many bytes have arrived, or the answer behind it.
    Body(Body, u64),
}

/// What a connection may read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayRead {
    /// So many bytes, at least one.
    Bytes(u64),
    /// Nothing in this run of its task.
    NextRun,
    /// Nothing until the request is answered, or its body is read. Meanwhile it is not noticed if the client
    /// goes away.
    Later,
}

impl MayRead {
    /// What may be read if so many bytes were read in this run. `is_ahead`: bytes of a further request have
    /// arrived.
    pub(crate) fn of(due: Due, in_run: u64, is_ahead: bool) -> Self {
        let at_most = |bytes, or| match bytes {
            0 => or,
            bytes => Self::Bytes(bytes),
        };
        match due {
            Due::Head => {
                let of_run = if is_ahead { BEYOND_BYTES } else { RUN_BYTES };
                at_most(of_run.saturating_sub(in_run), Self::NextRun)
            }
            // What is beyond the body shows that the client sends requests ahead, or that it is gone.
            Due::Body(Body::Bytes(bytes), arrived) => {
                let beyond = if is_ahead { 0 } else { BEYOND_BYTES };
                match bytes.saturating_sub(arrived) {
                    0 => at_most(beyond, Self::Later),
                    left => {
                        let of_run = BODY_RUN_BYTES.saturating_sub(in_run);
                        at_most(of_run.min(left.saturating_add(beyond)), Self::NextRun)
                    }
                }
            }
            Due::Body(Body::Unknown { is_collected: false }, arrived) => {
                at_most(RUN_BYTES.saturating_sub(arrived), Self::Later)
            }
            Due::Body(Body::Unknown { is_collected: true }, _) => {
                at_most(RUN_BYTES.saturating_sub(in_run), Self::NextRun)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_in_parts_and_little_beyond_it() {
        let of = |arrived, in_run, is_ahead| {
            MayRead::of(Due::Body(Body::Bytes(1 << 20), arrived), in_run, is_ahead)
        };
        assert_eq!(of(0, 768, false), MayRead::Bytes(32_000));
        assert_eq!(of(32_000, 1 << 15, false), MayRead::NextRun);
        assert_eq!(of((1 << 20) - 1, 0, false), MayRead::Bytes(513));
        assert_eq!(of((1 << 20) - 1, 0, true), MayRead::Bytes(1));
        assert_eq!(of(1 << 20, 1 << 16, false), MayRead::Bytes(512));
        assert_eq!(of(1 << 20, 0, true), MayRead::Later);
        assert_eq!(of((1 << 20) + 1, 0, true), MayRead::Later);
        let endless = Due::Body(Body::Bytes(u64::MAX), 0);
        assert_eq!(MayRead::of(endless, 0, false), MayRead::Bytes(1 << 15));
    }

    #[test]
    fn heads_are_read_in_small_parts_and_smaller_ones_if_they_come_ahead() {
        let of = |in_run, is_ahead| MayRead::of(Due::Head, in_run, is_ahead);
        assert_eq!(of(0, false), MayRead::Bytes(4_096));
        assert_eq!(of(4_000, false), MayRead::Bytes(96));
        assert_eq!(of(4_096, false), MayRead::NextRun);
        assert_eq!(of(0, true), MayRead::Bytes(512));
        assert_eq!(of(600, true), MayRead::NextRun);
    }

    #[test]
    fn a_body_of_unknown_length_is_read_in_small_parts_once_it_is_collected() {
        let of = |is_collected, arrived, in_run| {
            MayRead::of(Due::Body(Body::Unknown { is_collected }, arrived), in_run, true)
        };
        assert_eq!(of(false, 4_000, 0), MayRead::Bytes(96));
        assert_eq!(of(false, 4_096, 0), MayRead::Later);
        assert_eq!(of(true, 4_096, 0), MayRead::Bytes(4_096));
        assert_eq!(of(true, 1 << 20, 4_096), MayRead::NextRun);
    }
}
