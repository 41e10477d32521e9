//! The mounts of this process's mount namespace, as the kernel lists them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::MountFlags;

/// The options of a mount that a change of it must repeat. (The kernel keeps the options for times of
/// access.)
const REPEATED: [(&str, MountFlags); 4] = [
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("nosymfollow", MountFlags::NOSYMFOLLOW),
];

/// One mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    id: u64,
    pub(super) path: PathBuf,
    pub(super) flags: MountFlags,
    pub(super) file_system: String,
}

impl Mount {
    /// Whether the path leads to this mount. It does not where another mount covers it, or where this
    /// process may not enter a folder above it.
    pub(super) fn is_reachable(&self) -> io::Result<bool> {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
        let Ok(found) = statx(CWD, &self.path, flags, StatxFlags::MNT_ID) else { return Ok(false) };
        if !StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID) {
            return Err(io::Error::other("needs Linux 5.8"));
        }
        Ok(found.stx_mnt_id == self.id)
    }
}

/// All mounts of the namespace.
pub(super) fn read() -> io::Result<Vec<Mount>> {
    let table = fs::read("/proc/self/mountinfo")?;
    table
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| read_line(line).ok_or_else(|| io::Error::other("a mount cannot be read")))
        .collect()
}

/// A line has the id, that of the parent, the device, the root, the path, the options, any number of
/// further fields, `-`, and the file system.
fn read_line(line: &[u8]) -> Option<Mount> {
    let text = |word: &[u8]| String::from_utf8(word.to_vec()).ok();
    let mut words = line.split(|byte| *byte == b' ');
    let id = text(words.next()?)?.parse().ok()?;
    let path = OsString::from_vec(unescape(words.nth(3)?)).into();
    let options = text(words.next()?)?;
    let file_system = text(words.skip_while(|word| *word != b"-").nth(1)?)?;
    let is_set = |name: &str| options.split(',').any(|option| option == name);
    let flags =
        REPEATED.into_iter().filter(|(name, _)| is_set(name)).map(|(_, flag)| flag).collect();
    Some(Mount { id, path, flags, file_system })
}

/// The kernel writes spaces, tabs, line ends and backslashes as three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_line_is_read_with_its_escapes_and_without_its_further_fields() {
        let line = br"36 35 98:0 /mnt1 /my\040mnt\134 rw,noexec,nosuid,relatime master:1 shared:2 - sysfs /dev/root rw";
        let expected = Mount {
            id: 36,
            path: r"/my mnt\".into(),
            flags: MountFlags::NOSUID | MountFlags::NOEXEC,
            file_system: "sysfs".into(),
        };
        assert_eq!(read_line(line), Some(expected));
        assert_eq!(read_line(b"36 35 98:0 /mnt1"), None);
    }

    #[test]
    fn the_root_of_this_process_is_a_reachable_mount() {
        let mounts = read().unwrap();
        let reachable = |mount: &&Mount| mount.is_reachable().unwrap();
        let at_root = mounts.iter().filter(|mount| mount.path.as_path() == Path::new("/"));
        assert_eq!(at_root.filter(reachable).count(), 1, "{mounts:?}");
    }
}
