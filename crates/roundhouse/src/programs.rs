//! Checks that the programs of stdio servers exist on this machine.
//!
//! A node starts without such a program: it then serves its other tenants, and logs a warning.
//! `roundhouse check` fails.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use backends::stdio::StdioSettings;

use crate::sandbox;
use crate::settings::{Problems, Settings, values};

/// The permission bits of which a program has one.
const EXECUTABLE: u32 = 0o111;

/// For each stdio server that cannot be started on this machine: its key and the reason.
pub(crate) fn unusable(settings: &Settings, problems: &Problems) -> Vec<(String, String)> {
    let mut unusable = Vec::new();
    for (_, at, stdio) in sandbox::stdio_backends(settings) {
        let is_folder = |cwd: &&PathBuf| !cwd.is_dir();
        if let Some(cwd) = stdio.cwd.as_ref().filter(is_folder) {
            let why = if cwd.exists() { "not a folder" } else { "not there" };
            unusable.push((
                format!("{at}.cwd"),
                format!(
                    "`{at}.cwd` is {cwd:?}, which is {why}; create the folder, or leave `cwd` out"
                ),
            ));
        }
        if !stdio.command.is_empty()
            && let Err(why) = find(&stdio)
        {
            let key = format!("{at}.command");
            let text = if problems.is_from_environment(&key) {
                format!(
                    "`{key}` is set by this variable to a program that cannot be run on this \
                     machine; write the path of a program, and its arguments as `args`"
                )
            } else {
                let command = values::shown(&key, &stdio.command.as_str().into());
                format!("`{key}` is {command}, {why}")
            };
            unusable.push((key, text));
        }
    }
    unusable
}

/// Looks the program up as its guard does. The error is the rest of a sentence about the command.
fn find(stdio: &StdioSettings) -> Result<(), String> {
    let command = &stdio.command;
    let is_path = command.contains('/');
    let path = stdio.env.get("PATH").map(Into::into).or_else(|| std::env::var_os("PATH"));
    let found = match is_path {
        true => {
            let from = stdio.cwd.clone().unwrap_or_default();
            is_program(&from.join(command))
        }
        false => look_up(command, path.as_deref().unwrap_or_default()),
    };
    let mut words = command.split_whitespace();
    let (first, rest): (_, Vec<&str>) = (words.next().unwrap_or_default(), words.collect());
    match found {
        Found::Program => Ok(()),
        Found::Nothing | Found::Other if !rest.is_empty() => Err(format!(
            "and no shell splits it into words; write `command = {first:?}` and `args = {}`",
            if values::looks_secret(command) { "[…]".into() } else { format!("{rest:?}") }
        )),
        Found::Nothing if is_path => {
            Err("which is not there; write the path of a program on this machine".into())
        }
        Found::Nothing => Err(format!(
            "which is not in the PATH of this process; install it, or write its whole path, as in \
             \"/usr/bin/{first}\""
        )),
        Found::Other => Err("which cannot be run; write the path of a program, or make the file \
                             executable (`chmod +x`)"
            .into()),
    }
}

enum Found {
    Program,
    /// A folder, or a file that is not executable.
    Other,
    Nothing,
}

fn is_program(path: &Path) -> Found {
    match std::fs::metadata(path) {
        Ok(file) if file.is_file() && file.permissions().mode() & EXECUTABLE != 0 => Found::Program,
        Ok(_) => Found::Other,
        // Another user may have the right to see the file.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Found::Program,
        Err(_) => Found::Nothing,
    }
}

fn look_up(name: &str, path: &OsStr) -> Found {
    let mut all = std::env::split_paths(path).map(|folder| is_program(&folder.join(name)));
    all.find(|found| matches!(found, Found::Program)).unwrap_or(Found::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(stdio: &StdioSettings) -> String {
        find(stdio).err().unwrap_or_default()
    }

    #[test]
    fn a_program_is_a_path_or_a_name_in_the_path_variable() {
        let none = [""; 0];
        let file = tempfile::NamedTempFile::new().unwrap();
        let plain = file.path().to_str().unwrap();
        for (command, wanted) in [
            ("sh", ""),
            ("/bin/sh", ""),
            ("no-such-program", "which is not in the PATH of this process"),
            ("/nowhere/at/all", "which is not there"),
            ("npx -y foo", "write `command = \"npx\"` and `args = [\"-y\", \"foo\"]`"),
            (plain, "make the file executable"),
        ] {
            let why = why(&StdioSettings::new(command, none));
            assert!(why.contains(wanted) && why.is_empty() == wanted.is_empty(), "{why}");
        }
        let mut own = StdioSettings::new("sh", none);
        own.env.insert("PATH".into(), "/nowhere".into());
        assert!(why(&own).contains("not in the PATH"), "{}", why(&own));
        let mut relative = StdioSettings::new("./sh", none);
        relative.cwd = Some("/bin".into());
        assert_eq!(why(&relative), "");
    }
}
