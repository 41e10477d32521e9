//! The audit file: lines are appended, and it is rotated between two lines.
//!
//! Several processes may append to one file. `write(2)` in append mode keeps their lines apart, and the
//! process that rotates has the lock of the file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::fstatfs;

use crate::Settings;

/// Only the node's own user reads the file.
const MODE: u32 = 0o600;

/// The kinds of file systems (`statfs(2)`) that take writes into the memory of the kernel: btrfs, ext2 to
/// ext4, F2FS, overlayfs, tmpfs and XFS.
const LOCAL: [i64; 6] = [0x9123_683e, 0xef53, 0xf2f5_2010, 0x794c_7630, 0x0102_1994, 0x5846_5342];

/// How often the path is compared with the open file, if there are records.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the next attempt to rotate waits after one that failed.
const ROTATE_AGAIN: Duration = Duration::from_secs(10);

/// An audit file that is open for appending.
#[derive(Debug)]
pub(crate) struct AuditFile {
    path: PathBuf,
    bytes_max: u64,
    files_max: u32,
    syncs: bool,
    file: File,
    /// What the file holds, as far as this process knows.
    bytes: u64,
    is_regular: bool,
    /// Whether the kernel takes what is written into its memory.
    is_cached: bool,
    /// Whether the file ends within a line of a process that ended.
    has_torn_end: bool,
    looked_at: Instant,
    rotates_from: Option<Instant>,
}

impl AuditFile {
    /// Opens the file of these settings, or creates it.
    pub(crate) fn open(settings: &Settings) -> io::Result<Self> {
        let mut opened = Self {
            path: settings.file.clone(),
            bytes_max: settings.file_bytes_max,
            files_max: settings.files_max,
            syncs: settings.sync,
            file: appendable(&settings.file)?,
            bytes: 0,
            is_regular: false,
            is_cached: false,
            has_torn_end: false,
            looked_at: Instant::now(),
            rotates_from: None,
        };
        opened.examine()?;
        Ok(opened)
    }

    /// Whether the kernel takes so many bytes into its memory, and nothing is to be done before or behind.
    pub(crate) fn takes_at_once(&self, bytes: usize, now: Instant) -> bool {
        let has_looked = now.saturating_duration_since(self.looked_at) < LOOK_EVERY;
        let is_ready = !self.syncs && !self.has_torn_end && has_looked;
        let has_room = self.bytes_max == 0 || self.bytes + bytes as u64 <= self.bytes_max;
        self.is_cached && is_ready && has_room
    }

    /// Opens the path again if it leads to another file than the open one, and rotates the file if so
    /// many bytes more would be too many.
    pub(crate) fn prepare(&mut self, bytes: usize) -> io::Result<()> {
        if self.looked_at.elapsed() >= LOOK_EVERY {
            self.reopen_if_moved()?;
        }
        let is_full = self.bytes > 0 && self.bytes + bytes as u64 > self.bytes_max;
        let may_rotate = self.rotates_from.is_none_or(|from| Instant::now() >= from);
        if self.bytes_max == 0 || !self.is_regular || !is_full || !may_rotate {
            return Ok(());
        }
        match self.rotate() {
            Ok(()) => self.rotates_from = None,
            // No record is lost: the file becomes longer than it should.
            Err(error) => {
                self.rotates_from = Some(Instant::now() + ROTATE_AGAIN);
                tracing::error!(
                    %error,
                    file = %self.path.display(),
                    "the audit file could not be rotated, and grows on; let the node's user \
                     rename files in its folder"
                );
            }
        }
        Ok(())
    }

    /// Appends a beginning of these lines, and returns its length.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.has_torn_end {
            self.file.write_all(b"\n")?;
            self.has_torn_end = false;
        }
        let written = self.file.write(lines)?;
        self.bytes += written as u64;
        Ok(written)
    }

    /// Waits until everything is on the disk, if the settings ask for it.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.syncs && self.is_regular { self.file.sync_data() } else { Ok(()) }
    }

    /// Opens the path again if another program moved the file away, or removed it.
    pub(crate) fn reopen_if_moved(&mut self) -> io::Result<()> {
        self.looked_at = Instant::now();
        if !self.is_at_path()? {
            return self.reopen();
        }
        if self.is_regular {
            // Another process may have written, or emptied the file.
            self.bytes = self.file.metadata()?.len();
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = appendable(&self.path)?;
        self.examine()
    }

    fn is_at_path(&self) -> io::Result<bool> {
        let opened = self.file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (opened.dev(), opened.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finds out what the file holds, and whether its last line is whole.
    fn examine(&mut self) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        self.is_regular = metadata.is_file();
        self.is_cached = self.is_regular && is_of_this_machine(&self.file)?;
        self.bytes = if self.is_regular { metadata.len() } else { 0 };
        self.has_torn_end = false;
        if self.bytes > 0 {
            let mut last = [0];
            let mut reading = File::open(&self.path)?;
            reading.seek(SeekFrom::End(-1))?;
            reading.read_exact(&mut last)?;
            self.has_torn_end = last != *b"\n";
        }
        if self.syncs && self.is_regular {
            // A new file is there after a crash only if its folder is on the disk.
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(())
    }

    /// Renames the file and those before it, and begins a new one.
    fn rotate(&mut self) -> io::Result<()> {
        self.file.lock()?;
        // The lock ends when the file is closed.
        if !self.is_at_path()? {
            // Another process has rotated it.
            return self.reopen();
        }
        self.sync()?;
        let shifted = self.shift();
        if shifted.is_err() {
            self.file.unlock()?;
            return shifted;
        }
        self.reopen()
    }

    /// Renames each file to the next number, up to the first number that is free.
    fn shift(&self) -> io::Result<()> {
        let is_free = |number: &u32| !self.numbered(*number).exists();
        let last = (1..self.files_max).find(is_free).unwrap_or(self.files_max);
        // The oldest file is removed first: a rename that replaces a file makes some file systems write the
        // renamed one to the disk at once.
        match fs::remove_file(self.numbered(last)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for number in (1..last).rev() {
            fs::rename(self.numbered(number), self.numbered(number + 1))?;
        }
        fs::rename(&self.path, self.numbered(1))
    }

    /// The name of the file that was rotated so many times.
    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Whether the file is on a disk of this machine, or in its memory. A server of files in a network, or a
/// process (FUSE), may let each write wait.
fn is_of_this_machine(file: &File) -> io::Result<bool> {
    Ok(LOCAL.contains(&(fstatfs(file)?.f_type as i64)))
}

fn appendable(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::To;

    fn settings(folder: &Path) -> Settings {
        let file = folder.join("audit.jsonl");
        Settings { to: To::File, file, file_bytes_max: 100, files_max: 2, ..Settings::default() }
    }

    fn append(file: &mut AuditFile, line: &str) {
        let line = format!("{line}\n");
        file.prepare(line.len()).unwrap();
        assert_eq!(file.write(line.as_bytes()).unwrap(), line.len());
    }

    fn text(settings: &Settings, end: &str) -> String {
        fs::read_to_string(format!("{}{end}", settings.file.display())).unwrap_or_default()
    }

    #[test]
    fn a_full_file_is_renamed_between_lines_and_the_oldest_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let mut file = AuditFile::open(&settings).unwrap();
        for number in 0..10 {
            append(&mut file, &format!("{number}{}", "x".repeat(40)));
        }
        let numbers =
            |end| -> String { text(&settings, end).lines().map(|line| &line[..1]).collect() };
        assert_eq!([numbers(""), numbers(".1"), numbers(".2")], ["89", "67", "45"]);
        assert!(!folder.path().join("audit.jsonl.3").exists());
        let mode = fs::metadata(&settings.file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_of_two_processes_is_rotated_once() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let [mut one, mut other] = [0, 1].map(|_| AuditFile::open(&settings).unwrap());
        let line = "x".repeat(60);
        append(&mut one, &line);
        // The second process takes the file for empty, and appends to it.
        append(&mut other, &line);
        append(&mut one, "1");
        append(&mut other, &line);
        // The first process finds that its file was rotated.
        append(&mut one, &line);
        assert_eq!(text(&settings, ".1").lines().count(), 3);
        assert_eq!(text(&settings, "").lines().count(), 2, "{}", text(&settings, ""));
        assert_eq!(text(&settings, ".2"), "");
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let mut file = AuditFile::open(&settings).unwrap();
        append(&mut file, "first");
        fs::rename(&settings.file, folder.path().join("moved")).unwrap();
        append(&mut file, "second");
        file.reopen_if_moved().unwrap();
        append(&mut file, "third");
        assert_eq!(fs::read_to_string(folder.path().join("moved")).unwrap(), "first\nsecond\n");
        assert_eq!(text(&settings, ""), "third\n");
    }

    #[test]
    fn a_line_that_a_process_left_torn_stays_alone() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        fs::write(&settings.file, "{\"torn").unwrap();
        let mut file = AuditFile::open(&settings).unwrap();
        append(&mut file, "whole");
        append(&mut file, "next");
        assert_eq!(text(&settings, ""), "{\"torn\nwhole\nnext\n");
    }

    #[test]
    fn a_file_that_cannot_be_rotated_grows_on() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let mut file = AuditFile::open(&settings).unwrap();
        // A folder that is not empty is in the place of the rotated file.
        fs::create_dir_all(folder.path().join("audit.jsonl.1/x")).unwrap();
        fs::create_dir_all(folder.path().join("audit.jsonl.2/x")).unwrap();
        (0..4).for_each(|number| append(&mut file, &format!("{number}{}", "x".repeat(60))));
        assert_eq!(text(&settings, "").lines().count(), 4);
    }

    #[test]
    fn a_device_is_written_and_never_rotated() {
        let settings = Settings { file: "/dev/null".into(), ..settings(Path::new("/dev")) };
        let mut file = AuditFile::open(&settings).unwrap();
        (0..4).for_each(|_| append(&mut file, &"x".repeat(60)));
        let full = Settings { file: "/dev/full".into(), ..settings };
        assert!(AuditFile::open(&full).unwrap().write(b"x\n").is_err());
    }
}
