//! The settings as they are written: values by key, and where each of them is written.

use std::io;
use std::path::Path;

use serde_json::{Map, Value as Json};
use toml::de::{DeTable, DeValue, Error};

use super::digests::content;
use super::finding::Place;
use super::shape::join;
use super::{Digests, Problems};

/// Largest settings file, in bytes; a larger one is refused.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// Adds what the file sets to `root`, and the place of each key to the problems.
pub(super) fn add_file(
    file: &Path,
    text: Result<String, String>,
    root: &mut Map<String, Json>,
    problems: &mut Problems,
) {
    match text {
        Ok(text) => FileText::new(file, &text, "").add(root, problems),
        Err(why) => problems.add_unreadable("tenants", None, why),
    }
}

/// Adds what the file of the tenant at the key `at` sets to `tenant`.
pub(super) fn add_tenant_file(
    file: &Path,
    at: &str,
    text: &str,
    tenant: &mut Map<String, Json>,
    problems: &mut Problems,
) {
    FileText::new(file, text, at).add(tenant, problems);
}

/// The text of a settings file.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    read_into(file, &mut Digests::default())
}

/// The text of a settings file. Adds the digest of its content to `digests`.
pub(super) fn read_into(file: &Path, digests: &mut Digests) -> Result<String, String> {
    let name = file.display();
    if file.is_dir() {
        return Err(format!("{name}: is a folder; write the path of a settings file in it"));
    }
    let content = content(file, FILE_BYTES_MAX);
    digests.add(file.to_owned(), content.as_ref().ok());
    let bytes = content.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{name}: there is no such file; write the path of a settings file")
        }
        io::ErrorKind::PermissionDenied => format!(
            "{name}: this user may not read the file ({error}); change its owner or its mode"
        ),
        io::ErrorKind::FileTooLarge => {
            format!("{name}: is larger than 16 MiB, which no settings file is")
        }
        _ => format!("{name}: cannot be read: {error}"),
    })?;
    utf8(bytes).map_err(|line| format!("{name}:{line}: is not UTF-8; save the file as UTF-8"))
}

/// The text, or the first line that is none.
pub(super) fn utf8(bytes: Vec<u8>) -> Result<String, usize> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        1 + valid.iter().filter(|byte| **byte == b'\n').count()
    })
}

struct FileText<'a> {
    file: &'a Path,
    text: &'a str,
    /// The key of the table that the file holds; empty for all settings.
    at: &'a str,
    /// Where each line ends. To count the lines before each key anew would take a second for 2,000
    /// tenants.
    line_ends: Vec<usize>,
}

impl<'a> FileText<'a> {
    fn new(file: &'a Path, text: &'a str, at: &'a str) -> Self {
        let line_ends = text.match_indices('\n').map(|(offset, _)| offset).collect();
        Self { file, text, at, line_ends }
    }

    fn add(&self, root: &mut Map<String, Json>, problems: &mut Problems) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            self.add_table(self.at, table.get_ref(), root, problems);
            return;
        }
        if let Some(other) = other_format(self.text) {
            let text = format!("this is {other}, and settings are TOML; {}", self.remedy(other));
            problems.add_unreadable(self.whole(), Some(Place::Line(self.file.into(), 1)), text);
            return;
        }
        for error in errors {
            self.add_error(&error, problems);
        }
    }

    /// A syntax error, with its line. The line itself is not repeated: it may hold a secret.
    fn add_error(&self, error: &Error, problems: &mut Problems) {
        let start = error.span().map_or(0, |span| span.start).min(self.text.len());
        let column =
            1 + self.text[..start].rsplit('\n').next().map_or(0, |before| before.chars().count());
        let message = error.message().trim().replace('\n', ", ");
        let header = if self.at.is_empty() { "[front]" } else { "[backends.main]" };
        let text = format!(
            "TOML syntax error in column {column}: {message}; a line is `key = value`, with text in \
             quotation marks, or a header as in {header}"
        );
        problems.add_unreadable(self.whole(), Some(self.place(start)), text);
    }

    /// The key of which nothing is known if the file cannot be read.
    fn whole(&self) -> &str {
        if self.at.is_empty() { "tenants" } else { self.at }
    }

    fn remedy(&self, format: &str) -> String {
        match format {
            "JSON" => format!(
                "for the servers of a client's file (`mcpServers`) write `roundhouse import {}`",
                self.file.display()
            ),
            _ if self.at.is_empty() => {
                "write [front] for a section and `listen = \"127.0.0.1:8080\"` for a key".into()
            }
            _ => "write [backends.main] for a section and `auth = \"open\"` for a key".into(),
        }
    }

    fn add_table(
        &self,
        at: &str,
        table: &DeTable<'_>,
        into: &mut Map<String, Json>,
        problems: &mut Problems,
    ) {
        for (key, value) in table {
            let path = join(at, key.get_ref());
            problems.places().set(path.clone(), self.place(key.span().start));
            if let Some(value) = self.json(&path, value.get_ref(), problems) {
                into.insert(key.get_ref().to_string(), value);
            }
        }
    }

    fn json(&self, at: &str, value: &DeValue<'_>, problems: &mut Problems) -> Option<Json> {
        Some(match value {
            DeValue::String(text) => Json::String(text.to_string()),
            DeValue::Boolean(truth) => Json::Bool(*truth),
            DeValue::Integer(number) => {
                match i64::from_str_radix(&number.as_str().replace('_', ""), number.radix()) {
                    Ok(number) => number.into(),
                    Err(_) => {
                        problems.add_about(at, format!("`{at}` is too large a number"));
                        return None;
                    }
                }
            }
            DeValue::Float(number) => {
                let number = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
                number.map_or(Json::Null, Json::Number)
            }
            DeValue::Datetime(_) => {
                let text = format!("`{at}` is a date, which no setting is; write text as \"…\"");
                problems.add_about(at, text);
                return None;
            }
            DeValue::Array(values) => {
                let values = values.iter().filter_map(|v| self.json(at, v.get_ref(), problems));
                Json::Array(values.collect())
            }
            DeValue::Table(table) => {
                let mut into = Map::new();
                self.add_table(at, table, &mut into, problems);
                Json::Object(into)
            }
        })
    }

    fn place(&self, offset: usize) -> Place {
        let line = 1 + self.line_ends.partition_point(|end| *end < offset);
        Place::Line(self.file.into(), line)
    }
}

/// The format of a text that is not TOML, if it is a common one.
fn other_format(text: &str) -> Option<&'static str> {
    if text.trim_start().starts_with('{') {
        return Some("JSON");
    }
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let is_yaml = |line: &str| {
        let is_key = |key: &str| {
            !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-\"'".contains(c))
        };
        line == "---"
            || line.split_once(':').is_some_and(|(key, rest)| {
                is_key(key) && (rest.is_empty() || rest.starts_with(' ')) && !rest.contains('=')
            })
    };
    first.is_some_and(is_yaml).then_some("YAML")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_recognised() {
        for (text, format) in [
            ("{\"mcpServers\": {}}", Some("JSON")),
            ("# a\nfront:\n  listen: x\n", Some("YAML")),
            ("---\na: 1", Some("YAML")),
            ("front = 3\n", None),
            ("[front\n", None),
        ] {
            assert_eq!(other_format(text), format, "{text}");
        }
    }
}
