//! Compares `docs/configuration.md` with the settings: every key, and its default.

use std::collections::BTreeMap;
use std::path::Path;

use roundhouse::Settings;

/// The rows of the page: key and default.
fn rows() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.splitn(3, '|');
        let key = cells.next()?.trim().strip_suffix('`')?;
        Some((key.to_owned(), cells.next()?.trim().trim_matches('`').to_owned()))
    });
    rows.collect()
}

#[test]
fn every_key_and_its_default_stand_in_the_configuration_page() {
    let mut rows = rows();
    let mut wrong = Vec::new();
    for (key, default) in Settings::keys() {
        let default = if default.is_null() { "–".to_owned() } else { default.to_string() };
        match rows.remove(&key) {
            None => wrong.push(format!("`{key}` has no row; its default is `{default}`")),
            Some(written) if written != default => {
                wrong.push(format!("`{key}` has the default `{default}`, not `{written}`"));
            }
            Some(_) => {}
        }
    }
    wrong.extend(rows.into_keys().map(|key| format!("`{key}` has a row and does not exist")));
    assert!(wrong.is_empty(), "docs/configuration.md:\n{}", wrong.join("\n"));
}
