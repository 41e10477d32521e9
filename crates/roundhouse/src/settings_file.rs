//! Adds tables to a settings file.
//!
//! New tables are written at the end of the file, so that every comment and the order of the file
//! stay. The whole result is checked before it replaces the file.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

use crate::Roundhouse;
use crate::settings::{Environment, Settings};

/// The permissions of a new settings file, which may hold secrets.
const MODE: u32 = 0o600;

/// A settings file to which tables are added. It is created if it is not there.
pub(crate) struct SettingsFile<'a> {
    file: &'a Path,
    /// The file itself, if `file` is a link to it.
    target: PathBuf,
    text: String,
    /// Its folder, which is locked: of two processes that add tables, one waits for the other.
    _locked: std::fs::File,
}

impl<'a> SettingsFile<'a> {
    /// Reads the file.
    pub(crate) fn read(file: &'a Path) -> anyhow::Result<Self> {
        // A link to the settings stays a link.
        let target = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        let locked = std::fs::File::open(folder_of(&target))
            .and_then(|folder| Ok(flock(&folder, FlockOperation::LockExclusive).map(|()| folder)?))
            .with_context(|| format!("the folder of {} cannot be locked", file.display()))?;
        let text = match target.exists() {
            true => crate::settings::file_text(&target).map_err(anyhow::Error::msg)?,
            false => String::new(),
        };
        Ok(Self { file, target, text, _locked: locked })
    }

    /// The text of the file; empty if there is none.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Adds tables to the file. Returns what an operator should know of the result.
    pub(crate) fn append(&self, tables: &str) -> anyhow::Result<Vec<String>> {
        let Self { file, target, text, .. } = self;
        let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let tables = if text.is_empty() { tables.trim_start() } else { tables };
        let new = format!("{text}{gap}{tables}");
        let findings = check(file, &new)?;
        replace(target, &new, MODE)
            .with_context(|| format!("{} cannot be written", file.display()))?;
        Ok(findings)
    }
}

/// Checks the whole result as `roundhouse check` does.
fn check(file: &Path, new: &str) -> anyhow::Result<Vec<String>> {
    let refused = || {
        format!("{} would not be valid with the new tables; nothing was written", file.display())
    };
    let reading = Settings::examine_text(file, new, &Environment::of_process());
    // Planning needs a runtime. This one never runs, so nothing is connected.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    let plan = Roundhouse::from_reading(reading).plan().with_context(refused)?;
    Ok(plan.findings.findings().iter().map(|finding| finding.without_severity()).collect())
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Replaces the file in one step: another process sees the old text or the new one. `mode`: the permissions of
/// a new file.
pub(crate) fn replace(file: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let folder = folder_of(file);
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let beside = folder.join(name);
    let written =
        write_beside(file, &beside, text, mode).and_then(|()| std::fs::rename(&beside, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn write_beside(file: &Path, beside: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    let mut options = std::fs::OpenOptions::new();
    let mut new = options.write(true).create_new(true).mode(mode).open(beside)?;
    if let Ok(old) = std::fs::metadata(file) {
        // Only root may give a file to another user.
        let _ = std::os::unix::fs::fchown(&new, Some(old.uid()), Some(old.gid()));
        new.set_permissions(Permissions::from_mode(old.permissions().mode()))?;
    }
    new.write_all(text.as_bytes())?;
    new.sync_all()
}
