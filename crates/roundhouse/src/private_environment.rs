//! Keeps settings out of the environment of the running process.
//!
//! The kernel shows the variables with which a process was started, for as long as it runs, in
//! `/proc/<pid>/environ`, in core dumps and to debuggers. Settings in the environment may be
//! secrets. A process cannot remove them from there, but a program that replaces it can start
//! without them. So [`enter`] starts the program again in the same process, with every setting and
//! every secret of a tenant removed from its environment.
//!
//! The settings are in a memory file without a name. A socket passes it on, together with
//! standard input, whose place the socket takes in the meantime. The new program takes both from
//! the socket, and thereby has standard input again. Nothing else stays open: the memory is freed
//! when the file has been read.

use std::ffi::OsString;
use std::sync::OnceLock;

/// Set in the environment of the new program, to its process id. A process that inherits the
/// variable has another id.
pub(crate) const MARK: &str = "ROUNDHOUSE_SETTINGS_OF";

/// The prefix of variables that are settings, in any case.
pub(crate) const PREFIX: &str = "ROUNDHOUSE__";

/// The prefix of variables that are secrets of tenants. It is no setting: secrets leave the environment
/// before the settings are read.
pub(crate) const SECRET_PREFIX: &str = "ROUNDHOUSE_SECRET_";

/// The variable with the token of an operator, for the commands that ask a node. It is no setting either.
pub(crate) const ADMIN_TOKEN: &str = "ROUNDHOUSE_ADMIN_TOKEN";

/// The name and the value of a variable that is a setting or a secret.
type Setting = (String, String);

/// The settings and secrets that were removed from the environment.
static SETTINGS: OnceLock<Vec<Setting>> = OnceLock::new();

/// Is a variable with this name a setting?
pub(crate) fn is_setting(name: &str) -> bool {
    has_prefix(name, PREFIX)
}

/// Is a variable with this name a secret of a tenant?
pub(crate) fn is_secret(name: &str) -> bool {
    has_prefix(name, SECRET_PREFIX)
}

/// Is a variable with this name the token of an operator?
pub(crate) fn is_admin_token(name: &str) -> bool {
    name.eq_ignore_ascii_case(ADMIN_TOKEN)
}

/// The token of an operator, if it is in the environment.
pub(crate) fn admin_token() -> Option<String> {
    let mut removed = removed().into_iter().flatten();
    let removed = removed.find(|(name, _)| name == ADMIN_TOKEN).map(|(_, value)| value.clone());
    removed.or_else(|| std::env::var(ADMIN_TOKEN).ok()).filter(|token| !token.is_empty())
}

fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Is a variable with this name for the node only, so that no server gets it?
pub(crate) fn is_private(name: &str) -> bool {
    must_leave(name) || name == MARK
}

/// The settings and secrets that were removed from the environment; `None` if none was.
pub(crate) fn removed() -> Option<&'static [Setting]> {
    SETTINGS.get().map(Vec::as_slice)
}

/// Why the settings could not be removed from the environment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting cannot be read.
    #[error("the variable {name} is not UTF-8; write it again, or into a settings file")]
    NotText {
        /// The name of the variable.
        name: String,
    },
    /// The system refused what is needed.
    #[error(
        "cannot remove the settings from the environment of this process: {doing} failed; write \
         them into a file, and name it with `--config FILE`"
    )]
    System {
        /// What failed.
        doing: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// Call this in `main` after [`crate::guard::enter`], before any thread starts and before standard
/// input is read. If a setting or a secret is in the environment, it starts the program again with
/// the same arguments, process id and open files, and without any of them in its environment; the
/// call in the new program returns. [`crate::settings::Environment::of_process`] still has all settings.
/// Only on Linux; elsewhere it does nothing.
#[cfg(target_os = "linux")]
pub fn enter() -> Result<(), Error> {
    if std::env::var(MARK).is_ok_and(|pid| pid == std::process::id().to_string()) {
        let settings = linux::receive()?;
        // The call is the first of this process.
        let _ = SETTINGS.set(settings);
        return Ok(());
    }
    let (settings, others): (Vec<_>, Vec<_>) =
        std::env::vars_os().partition(|(name, _)| must_leave(&name.to_string_lossy()));
    if settings.is_empty() {
        return Ok(());
    }
    let settings = settings.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    Err(linux::start_again(&settings, others))
}

/// Must a variable with this name leave the environment?
fn must_leave(name: &str) -> bool {
    is_setting(name) || is_secret(name) || is_admin_token(name)
}

#[cfg(target_os = "linux")]
fn text((name, value): (OsString, OsString)) -> Result<Setting, Error> {
    match (name.into_string(), value.into_string()) {
        (Ok(name), Ok(value)) => Ok((name, value)),
        (Ok(name), Err(_)) => Err(Error::NotText { name }),
        (Err(name), _) => Err(Error::NotText { name: name.to_string_lossy().into_owned() }),
    }
}

/// Does nothing.
#[cfg(not(target_os = "linux"))]
pub fn enter() -> Result<(), Error> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::OsString;
    use std::fs::File;
    use std::io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::path::PathBuf;
    use std::process::Command;

    use rustix::cmsg_space;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    };
    use rustix::stdio::{dup2_stdin, stdin};

    use super::{Error, MARK, Setting};

    /// The program that runs now, also if its file was replaced.
    const THIS_PROGRAM: &str = "/proc/self/exe";

    fn while_doing(doing: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::System { doing, source }
    }

    /// Replaces this program by itself, without `settings` in its environment. Returns only if
    /// that failed.
    pub(super) fn start_again(settings: &[Setting], others: Vec<(OsString, OsString)>) -> Error {
        if let Err(error) = send(settings) {
            return error;
        }
        let mut args = std::env::args_os();
        let mut command = Command::new(this_program());
        command.arg0(args.next().unwrap_or_else(|| THIS_PROGRAM.into())).args(args);
        command.env_clear().envs(others).env(MARK, std::process::id().to_string());
        while_doing("starting the program again")(command.exec())
    }

    /// The path of this program. The kernel names the process after it, so [`THIS_PROGRAM`] is
    /// used only if there is no other path.
    fn this_program() -> PathBuf {
        let file = |path: &PathBuf| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
        let running = PathBuf::from(THIS_PROGRAM);
        match std::env::current_exe() {
            Ok(path) if file(&path).ok() == file(&running).ok() => path,
            _ => running,
        }
    }

    /// Makes standard input a socket, from which [`receive`] takes standard input and `settings`.
    fn send(settings: &[Setting]) -> Result<(), Error> {
        // Some systems refuse a memory file that could be run, and older ones do not know the flag.
        let mut memory = memfd_create("settings", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create("settings", MemfdFlags::CLOEXEC))
            .map(File::from)
            .map_err(|error| while_doing("creating a memory file")(error.into()))?;
        let mut bytes = Vec::new();
        for (name, value) in settings {
            // Neither has a null byte, and no name has an equals sign.
            bytes.extend(format!("{name}={value}\0").into_bytes());
        }
        let written = memory.write_all(&bytes).and_then(|()| memory.rewind());
        written.map_err(while_doing("writing a memory file"))?;
        let passed = || -> rustix::io::Result<()> {
            let (stream, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
            let (ours, theirs) = socketpair(AddressFamily::UNIX, stream, flags, None)?;
            let files = [stdin(), memory.as_fd()];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&files));
            sendmsg(&ours, &[IoSlice::new(b"s")], &mut control, SendFlags::NOSIGNAL)?;
            dup2_stdin(&theirs)
        };
        passed().map_err(|error| while_doing("passing a memory file on")(error.into()))
    }

    /// Takes standard input and the settings from the socket that is now standard input.
    pub(super) fn receive() -> Result<Vec<Setting>, Error> {
        let received = || -> io::Result<String> {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let into = &mut [IoSliceMut::new(&mut byte)];
            // Without a wait: if it was sent, it was sent before this program was started.
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            recvmsg(stdin(), into, &mut control, flags)?;
            let mut files = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            });
            let mut files = files.next().into_iter().flatten();
            let (Some(input), Some(memory)) = (files.next(), files.next()) else {
                return Err(io::Error::other("no files were passed on"));
            };
            dup2_stdin(&input)?;
            let mut text = String::new();
            File::from(memory).read_to_string(&mut text)?;
            Ok(text)
        };
        let doing = "reading them after the program was started again";
        received().map(|text| parse(&text)).map_err(while_doing(doing))
    }

    fn parse(text: &str) -> Vec<Setting> {
        let pairs = text.split('\0').filter_map(|variable| variable.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn values_may_have_equals_signs_and_line_ends_and_may_be_empty() {
            let found = parse("ROUNDHOUSE__A=b=c\nd\0ROUNDHOUSE__E=\0");
            let wanted = [("ROUNDHOUSE__A", "b=c\nd"), ("ROUNDHOUSE__E", "")];
            assert_eq!(found, wanted.map(|(name, value)| (name.into(), value.into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_known_by_its_prefix_in_any_case() {
        for name in ["ROUNDHOUSE__STORE__URL", "roundhouse__store__url", "Roundhouse__X"] {
            assert!(is_setting(name), "{name}");
        }
        for name in [
            "ROUNDHOUSE_",
            "ROUNDHOUSE_GUARD",
            "ROUNDHOUSE_SECRET_A__B",
            "XROUNDHOUSE__A",
            "PATH",
            "ROUNDHOUSÉ__A",
        ] {
            assert!(!is_setting(name), "{name}");
        }
        for name in ["ROUNDHOUSE_SECRET_A__B", "roundhouse_secret_x"] {
            assert!(is_secret(name) && is_private(name), "{name}");
        }
        assert!(is_private(ADMIN_TOKEN) && !is_setting(ADMIN_TOKEN) && !is_secret(ADMIN_TOKEN));
    }
}
