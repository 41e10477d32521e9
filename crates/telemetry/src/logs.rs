//! Sets up logging. Logs are always written to stderr, since the stdio transport uses stdout
//! (STD-02).

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry};

use crate::access_log::{Access, AccessLog};
use crate::current_span::WithSpan;
use crate::limit_layer::{LimitLayer, Limiter};
use crate::line_limit::LineLimit;
use crate::metrics;

/// The directives before the configured level. The HTTP layer logs mostly malformed input of
/// clients, and any client could fill the log with it; the front counts such input instead.
/// The `rmcp` crate logs whole messages, and logs must not contain payloads (SEC-19). This crate
/// reports lines that were left out, which a level for other crates only must not hide.
const QUIET: &str = "actix_http=off,actix_server=warn,rmcp=error,telemetry=info";

/// The level and the format of logs.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The format of each event: one line of text, or one JSON object.
    pub format: Format,
    /// `error`, `warn`, `info`, `debug` or `trace`; also by crate, as in `info,front=debug`.
    pub level: String,
    /// Most lines a second of level `info` and above that one place in the program writes, for
    /// each tenant or backend that the lines name. Further lines are counted, and their number is
    /// logged within five seconds. Lines of lower levels are not limited.
    pub lines_per_sec: u32,
    /// Most such lines at once.
    pub lines_burst: u32,
    /// Which exchanges with clients get a line in the access log.
    pub access: Access,
    /// With `sampled`: most exchanges without an error that get a line each second, of the whole
    /// node, evenly spread over its tenths. 0 for none.
    pub access_samples_per_sec: u32,
    /// With `errors` and `sampled`: most exchanges with an error of one tenant that get a line each
    /// second. Further ones are counted, and their number is logged.
    pub access_errors_per_sec: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            format: Format::Text,
            level: "info".to_owned(),
            lines_per_sec: 10,
            lines_burst: 20,
            access: Access::Sampled,
            access_samples_per_sec: 100,
            access_errors_per_sec: 100,
        }
    }
}

impl Settings {
    /// Checks the level and the limits, for a caller that checks before [`init`] does.
    pub fn check(&self) -> Result<(), Error> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// Everything that is wrong with the level and the limits.
    pub fn problems(&self) -> Vec<Error> {
        let limits =
            [("log.lines_per_sec", self.lines_per_sec), ("log.lines_burst", self.lines_burst)];
        let none = limits.into_iter().filter(|(_, lines)| *lines == 0);
        let none = none.map(|(setting, _)| Error::NoLines { setting });
        none.chain(filter(&self.level).err()).collect()
    }
}

/// The format of a log event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One line of text, for people.
    Text,
    /// One JSON object, for programs.
    Json,
}

/// Why logging was not set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The level cannot be parsed; nothing was set up.
    #[error(
        "`log.level` is {level:?}, of which {part:?} is not known; write error, warn, info, debug or \
         trace, and for a single crate crate=level, with commas between, as in \"info,front=debug\""
    )]
    Level {
        /// The configured level.
        level: String,
        /// The first part of it that is wrong.
        part: String,
    },
    /// A limit would leave out every line; nothing was set up.
    #[error("`{setting}` is 0, which leaves out every line; write a number of lines above 0")]
    NoLines {
        /// The setting.
        setting: &'static str,
    },
    /// The system refused the thread that reports lines that were left out.
    #[error("the system refused a thread for the log")]
    Thread(#[from] std::io::Error),
    /// This process has set up logging already, for example in an embedding program.
    #[error("logging is set up already; set it up once, before anything is logged")]
    Again,
}

/// Sets up logging for the process. Must be called once.
pub fn init(settings: &Settings) -> Result<(), Error> {
    settings.check()?;
    let filter = filter(&settings.level)?;
    let (limit, limiter) =
        LimitLayer::new(LineLimit::new(settings.lines_per_sec, settings.lines_burst));
    let format = fmt::layer().with_writer(std::io::stderr);
    let outcome = match settings.format {
        Format::Text => {
            let format = format
                .with_ansi(false)
                .map_event_format(|inner| WithSpan { inner, format: Format::Text });
            registry().with(filter).with(format).with(limit).try_init()
        }
        Format::Json => {
            let format = format
                .json()
                .flatten_event(true)
                .map_event_format(|inner| WithSpan { inner, format: Format::Json });
            registry().with(filter).with(format).with(limit).try_init()
        }
    };
    outcome.map_err(|_| Error::Again)?;
    std::sync::LazyLock::force(&metrics::LINES_LEFT_OUT);
    Limiter::start(limiter)?;
    Ok(AccessLog::start(settings)?)
}

fn filter(level: &str) -> Result<Targets, Error> {
    let wrong = |part: &str| Error::Level { level: level.to_owned(), part: part.trim().to_owned() };
    if let Some(part) = level.split(',').find(|part| !is_directive(part.trim())) {
        return Err(wrong(part));
    }
    format!("{QUIET},{level}").parse().map_err(|_| wrong(level))
}

/// Is this a level, or a crate or module with a level? A word that is no level would be read as a
/// crate of which everything is logged.
fn is_directive(part: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let is_target = |word: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
        !word.is_empty() && word.chars().all(is_part)
    };
    match part.split_once('=') {
        Some((target, level)) => is_target(target.trim()) && is_level(level.trim()),
        None => is_level(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_may_be_a_word_or_pairs_and_nonsense_is_named() {
        for level in ["info", "warn,front=debug", "actix_http=trace"] {
            assert!(filter(level).is_ok(), "{level}");
        }
        for (level, part) in [
            ("info,front=loudly", "front=loudly"),
            ("loud", "loud"),
            ("front", "front"),
            ("", ""),
            ("info,,warn", ""),
            ("=debug", "=debug"),
        ] {
            let error = filter(level).unwrap_err().to_string();
            let wanted = format!("`log.level` is \"{level}\", of which \"{part}\" is not known");
            assert!(error.starts_with(&wanted) && error.contains("debug"), "{error}");
        }
    }

    #[test]
    fn a_limit_that_leaves_out_every_line_is_refused_by_its_name() {
        let settings = Settings { lines_burst: 0, ..Settings::default() };
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with("`log.lines_burst` is 0"), "{error}");
        assert!(Settings::default().check().is_ok());
    }

    #[test]
    fn the_http_layer_is_quiet_unless_asked_for() {
        assert!(filter("debug").unwrap().to_string().contains("actix_http=off"));
        assert!(filter("actix_http=trace").unwrap().to_string().contains("actix_http=trace"));
    }
}
