//! Sets up logging. Logs are always written to stderr, since the stdio transport uses stdout
//! (STD-02).

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// The directives before the configured level. The HTTP layer logs mostly malformed input of
/// clients, and any client could fill the log with it; the front counts such input instead.
/// The `rmcp` crate logs whole messages, and logs must not contain payloads (SEC-19).
const QUIET: &str = "actix_http=off,actix_server=warn,rmcp=error";

/// The level and the format of logs.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The format of each event: one line of text, or one JSON object.
    pub format: Format,
    /// `error`, `warn`, `info`, `debug` or `trace`; also by crate, as in `info,front=debug`.
    pub level: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { format: Format::Text, level: "info".to_owned() }
    }
}

impl Settings {
    /// Checks that the level can be parsed, for a caller that checks before [`init`] does.
    pub fn check(&self) -> Result<(), Error> {
        filter(&self.level).map(drop)
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
        "the log level `{level}` is invalid; write error, warn, info, debug or trace, or crate=level pairs with commas between"
    )]
    Level {
        /// The configured level.
        level: String,
        /// The error of the parser.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// This process has set up logging already, for example in an embedding program.
    #[error("logging is set up already; set it up once, before anything is logged")]
    Again,
}

/// Sets up logging for the process. Must be called once.
pub fn init(settings: &Settings) -> Result<(), Error> {
    let filter = filter(&settings.level)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let outcome = match settings.format {
        Format::Text => builder.with_ansi(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    outcome.map_err(|_| Error::Again)
}

fn filter(level: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder()
        .parse(format!("{QUIET},{level}"))
        .map_err(|source| Error::Level { level: level.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_may_be_a_word_or_pairs_and_nonsense_is_named() {
        for level in ["info", "warn,front=debug", "actix_http=trace"] {
            assert!(filter(level).is_ok(), "{level}");
        }
        let error = filter("front=loudly").unwrap_err().to_string();
        assert!(error.contains("`front=loudly`") && error.contains("debug"), "{error}");
    }

    #[test]
    fn the_http_layer_is_quiet_unless_asked_for() {
        assert!(filter("debug").unwrap().to_string().contains("actix_http=off"));
        assert!(filter("actix_http=trace").unwrap().to_string().contains("actix_http=trace"));
    }
}
