//! The contents of files that settings are read from, and digests by which contents are compared.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Reads a file of at most `bytes_max` bytes. Blocks.
pub(super) fn content(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Digests of files, by which their contents are compared. A file that cannot be read has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digests(BTreeMap<PathBuf, Option<u64>>);

impl Digests {
    /// Reads these files, each of at most so many bytes. Blocks.
    pub(crate) fn of(files: impl IntoIterator<Item = (PathBuf, u64)>) -> Self {
        let mut digests = Self::default();
        for (file, bytes_max) in files {
            // Reading a pipe could wait for ever.
            let content = file.is_file().then(|| content(&file, bytes_max));
            digests.add(file, content.as_ref().and_then(|content| content.as_ref().ok()));
        }
        digests
    }

    /// Adds a file with the content that was read. A pipe has no content: it is gone when it was read.
    pub(super) fn add(&mut self, file: PathBuf, content: Option<&Vec<u8>>) {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let digest = content.filter(|_| file.is_file()).map(|content| hasher.hash_one(content));
        self.0.insert(file, digest);
    }

    /// Adds the files of others.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Whether the content of this file differs in `others`.
    pub(crate) fn is_changed_in(&self, others: &Self, file: &Path) -> bool {
        self.0.get(file) != others.0.get(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changes_when_its_content_does_or_when_it_comes_or_goes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        let digests = || Digests::of([(file.clone(), 4)]);
        let absent = digests();
        std::fs::write(&file, "1").unwrap();
        let one = digests();
        assert!(absent.is_changed_in(&one, &file));
        std::fs::write(&file, "1").unwrap();
        assert_eq!(one, digests());
        std::fs::write(&file, "2").unwrap();
        assert!(one.is_changed_in(&digests(), &file));
        std::fs::write(&file, "too large").unwrap();
        assert_eq!(digests(), absent);
    }

    #[test]
    fn a_pipe_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert_eq!(Digests::of([(pipe.clone(), 4)]), Digests(BTreeMap::from([(pipe, None)])));
    }
}
