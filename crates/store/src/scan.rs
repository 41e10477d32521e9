//! Pages of the sessions that a store holds, for operators.

use std::fmt;
use std::str::FromStr;

use protocol::SessionId;

/// Where the next page begins. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanCursor {
    /// The part of the store: of a Redis Cluster, the lowest slot of a primary.
    pub part: u16,
    /// The place in that part.
    pub position: u64,
}

/// One page: in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Sessions that the store held, of each status. One may be there twice, and also on another page.
    pub sessions: Vec<SessionId>,
    /// Where the next page begins; `None`: this is the last one.
    pub next: Option<ScanCursor>,
}

/// As operators write it: `PART.POSITION`.
impl fmt::Display for ScanCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.part, self.position)
    }
}

/// The text is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCursor;

impl FromStr for ScanCursor {
    type Err = NoCursor;

    fn from_str(written: &str) -> Result<Self, NoCursor> {
        let (part, position) = written.split_once('.').ok_or(NoCursor)?;
        let (part, position) = (part.parse(), position.parse());
        Ok(Self { part: part.map_err(|_| NoCursor)?, position: position.map_err(|_| NoCursor)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = ScanCursor { part: 5_461, position: u64::MAX };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for written in ["", "1", "1.", ".1", "65536.1", "1.x", "1.1.1", "a.1"] {
            assert_eq!(written.parse::<ScanCursor>(), Err(NoCursor), "{written}");
        }
    }
}
