//! The payload versions that connections carry. The caller of this crate defines their meaning.

use std::fmt;

use crate::frame::Greeting;

/// The versions that a program reads: all from the oldest to the newest. It can write each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest version.
    pub oldest: u32,
    /// The newest version.
    pub newest: u32,
}

impl Versions {
    /// The versions of programs that announce none, since they are older than the announcement.
    pub const UNANNOUNCED: Self = Self { oldest: 2, newest: 2 };

    /// The newest version that both read.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// The versions that a greeting announces.
    pub(crate) fn of(greeting: &Greeting) -> Self {
        match greeting.newest_version {
            0 => Self::UNANNOUNCED,
            newest => Self { oldest: greeting.oldest_version, newest },
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest),
            false => write!(f, "{} to {}", self.oldest, self.newest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_use_the_newest_version_that_both_read() {
        let versions = |oldest, newest| Versions { oldest, newest };
        for (one, other, common) in [
            (versions(2, 3), versions(2, 3), Some(3)),
            (versions(2, 3), versions(2, 2), Some(2)),
            (versions(2, 3), versions(3, 4), Some(3)),
            (versions(3, 4), versions(2, 2), None),
            (versions(2, 3), versions(1, 1), None),
        ] {
            assert_eq!(one.common(other), common);
            assert_eq!(other.common(one), common);
        }
    }
}
