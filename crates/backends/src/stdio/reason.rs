//! Why a child was not started or ended: for the log, and for clients, who learn the insides of a
//! node only where the settings allow it. Decides only.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use super::settings::StdioSettings;
use crate::guard::{GUARD_FAILED, NOT_FOUND, NOT_RUNNABLE, SIGNALLED};

/// The programs whose first word names the server that they start.
const LAUNCHERS: &[&str] =
    &["npx", "bunx", "uvx", "pipx", "uv", "npm", "node", "deno", "bun", "python", "python3"];

/// The options of launchers after which their first word may stand: flags, and those whose value is
/// itself the name of a package or a module.
const BEFORE_A_NAME: &[&str] =
    &["-y", "--yes", "-q", "--quiet", "-u", "--offline", "-m", "--from", "-p", "--package", "--"];

/// The longest word of a command line that is logged; a longer one is left out.
const WORD_BYTES_MAX: usize = 100;

/// Stands for a program whose name may hold a secret.
const UNUSUAL_NAME: &str = "(a program with an unusual name)";

/// The cause of a failure: the text for every client, and what only `explain` adds to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    cause: String,
    detail: Option<String>,
}

impl Reason {
    pub(super) fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), detail: None }
    }

    /// The system did not start the process.
    pub(super) fn not_started(error: &io::Error, settings: &StdioSettings) -> Self {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        match missing_directory(settings) {
            Some(cwd) => Self::no_directory(cwd),
            None if is_missing => Self::not_found(settings),
            None => Self::new(format!("the server could not be started ({})", error.kind())),
        }
    }

    fn no_directory(cwd: &Path) -> Self {
        Self {
            cause: "the working directory of the server does not exist".to_owned(),
            detail: Some(format!("`cwd` is {}", cwd.display())),
        }
    }

    fn not_found(settings: &StdioSettings) -> Self {
        Self {
            cause: "the command of the server was not found".to_owned(),
            detail: Some(format!("`command` is {:?}", shown_program(&settings.command))),
        }
    }

    /// The process has exited. A guard returns the statuses of shells.
    pub(super) fn exited(
        status: Option<ExitStatus>,
        is_guarded: bool,
        settings: &StdioSettings,
    ) -> Self {
        let Some(status) = status else { return Self::new("the server exited") };
        let program = || shown_program(&settings.command);
        let detail = |text: &str| Some(format!("{text}; `command` is {:?}", program()));
        match (status.code(), status.signal()) {
            (Some(NOT_FOUND), _) if is_guarded => Self {
                cause: format!("the server exited with status {NOT_FOUND} (command not found)"),
                detail: detail("no program has this name in its PATH"),
            },
            (Some(GUARD_FAILED), _) if is_guarded => {
                let other = format!(
                    "the server exited with status {GUARD_FAILED} (or its guard failed; see its log)"
                );
                missing_directory(settings).map_or_else(|| Self::new(other), Self::no_directory)
            }
            (Some(NOT_RUNNABLE), _) if is_guarded => Self {
                cause: format!(
                    "the server exited with status {NOT_RUNNABLE} (command cannot be run)"
                ),
                detail: detail("the file is not executable"),
            },
            (Some(code), _) if is_guarded && code > SIGNALLED => Self::new(format!(
                "the server exited with status {code} (signal {})",
                code - SIGNALLED
            )),
            (Some(code), _) => Self::new(format!("the server exited with status {code}")),
            (None, signal) => {
                Self::new(format!("the server was killed by signal {}", signal.unwrap_or_default()))
            }
        }
    }

    /// The text for the log.
    pub(super) fn for_log(&self) -> String {
        match &self.detail {
            Some(detail) => format!("{}: {detail}", self.cause),
            None => self.cause.clone(),
        }
    }

    /// The text for the client: with `explain` also the detail and the last lines of stderr.
    pub(super) fn for_client(&self, explain: bool, stderr: &[String]) -> String {
        match (explain, stderr) {
            (false, _) => self.cause.clone(),
            (true, []) => self.for_log(),
            (true, lines) => {
                format!("{}\nits last lines on stderr:\n{}", self.for_log(), lines.join("\n"))
            }
        }
    }
}

/// The working directory, if it does not exist.
fn missing_directory(settings: &StdioSettings) -> Option<&Path> {
    settings.cwd.as_deref().filter(|cwd| !cwd.is_dir())
}

/// The command for the log, without arguments that may be secret: the program, and for known
/// launchers the name of what they start.
pub(super) fn command_for_log(settings: &StdioSettings) -> String {
    let command = shown_program(&settings.command);
    let program = Path::new(command).file_name().unwrap_or_default().to_string_lossy();
    let is_launcher = LAUNCHERS.contains(&&*program);
    let is_before = |word: &&String| BEFORE_A_NAME.contains(&word.as_str());
    let word = settings.args.iter().find(|word| !is_before(word)).filter(|_| is_launcher);
    match word.filter(|word| is_name(word)) {
        Some(word) => format!("{program} {word}"),
        None => program.into_owned(),
    }
}

/// The `command` without what may be secret: an operator may have written a whole command line in it.
fn shown_program(command: &str) -> &str {
    if is_name(command) {
        return command;
    }
    let first = command.split_whitespace().next().unwrap_or_default();
    if is_name(first) { first } else { UNUSUAL_NAME }
}

/// Whether this is a name, and not a URL, an assignment or an option, which may hold a secret.
fn is_name(word: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "@/._-".contains(c);
    word.len() <= WORD_BYTES_MAX && !word.starts_with('-') && word.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_package_of_a_launcher_and_no_other_argument() {
        for (command, args, wanted) in [
            ("npx", &["-y", "@scope/server-files", "/srv"][..], "npx @scope/server-files"),
            ("/usr/bin/uvx", &["--from", "mcp-time", "server"], "uvx mcp-time"),
            ("python3", &["-m", "mcp_time"], "python3 mcp_time"),
            ("npx", &["--token", "hunter2"], "npx"),
            ("npx", &["-y", "https://user:hunter2@host/x"], "npx"),
            ("npx", &["-y", "TOKEN=hunter2"], "npx"),
            ("a-server", &["hunter2"], "a-server"),
            ("sh", &["-c", "hunter2"], "sh"),
            ("npx -y a-server --token hunter2", &[], "npx"),
            ("TOKEN=hunter2 npx", &[], UNUSUAL_NAME),
        ] {
            assert_eq!(command_for_log(&StdioSettings::new(command, args.to_vec())), wanted);
        }
    }

    #[test]
    fn a_client_learns_the_cause_and_the_insides_only_where_that_is_allowed() {
        let settings = StdioSettings::new("a-server", [""; 0]);
        let reason = Reason::exited(Some(ExitStatus::from_raw(127 << 8)), true, &settings);
        let stderr = ["API_KEY is required".to_owned()];
        let told = reason.for_client(false, &stderr);
        assert_eq!(told, "the server exited with status 127 (command not found)");
        let told = reason.for_client(true, &stderr);
        assert!(told.contains("`command` is \"a-server\"") && told.contains("API_KEY"), "{told}");
        assert!(reason.for_log().contains("a-server"));
    }

    #[test]
    fn a_command_line_in_place_of_a_program_is_not_repeated() {
        let settings = StdioSettings::new("/usr/bin/npx --token hunter2", [""; 0]);
        let not_started = Reason::not_started(&io::ErrorKind::NotFound.into(), &settings);
        let exited = Reason::exited(Some(ExitStatus::from_raw(127 << 8)), true, &settings);
        for reason in [not_started, exited] {
            let logged = reason.for_log();
            assert!(logged.ends_with("`command` is \"/usr/bin/npx\""), "{logged}");
        }
    }

    #[test]
    fn a_missing_working_directory_is_named_in_the_log() {
        let mut settings = StdioSettings::new("sh", [""; 0]);
        settings.cwd = Some("/nowhere/at/all".into());
        let reason = Reason::not_started(&io::ErrorKind::NotFound.into(), &settings);
        assert!(reason.for_log().contains("`cwd` is /nowhere/at/all"), "{reason:?}");
        assert!(!reason.for_client(false, &[]).contains("nowhere"), "{reason:?}");
    }
}
