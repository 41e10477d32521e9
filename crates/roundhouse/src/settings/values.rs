//! How a value is written in a message: as in the file, or not at all if it may be a secret.

use serde_json::Value as Json;

/// Parts of the names of keys whose values are secrets.
const SECRET: [&str; 6] = ["password", "secret", "token", "credential", "api_key", "apikey"];

/// Longest text that is repeated, in characters.
const LENGTH_MAX: usize = 64;

/// A text of at least so many characters may be a key or a token.
const TOKEN_LENGTH_MIN: usize = 20;

/// Is the value of this key never shown?
pub(crate) fn is_secret_key(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key).to_ascii_lowercase();
    key == "store.url" || key.contains(".env.") || SECRET.iter().any(|part| name.contains(part))
}

/// The value of a key, as a message repeats it.
pub(crate) fn shown(key: &str, value: &Json) -> String {
    let secret = is_secret_key(key);
    match value {
        Json::Bool(_) | Json::Number(_) if !secret => value.to_string(),
        Json::String(text) if !secret && !looks_secret(text) => format!("{text:?}"),
        Json::String(_) => "a text that is not repeated here, since it may be a secret".into(),
        Json::Array(_) => "a list".into(),
        Json::Object(_) => "a table".into(),
        _ => "a value that is not repeated here, since it may be a secret".into(),
    }
}

/// Does this text look like a password, a key or a token? An address, a path and words do not.
pub(crate) fn looks_secret(text: &str) -> bool {
    let has_credentials = text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    let is_long = text.chars().count() > LENGTH_MAX;
    let is_one_word = |word: &str| {
        let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '=');
        let has = |of: fn(&char) -> bool| word.chars().any(|c| of(&c));
        word.chars().count() >= TOKEN_LENGTH_MIN
            && word.chars().all(is_token)
            && has(char::is_ascii_digit)
            && has(char::is_ascii_alphabetic)
    };
    has_credentials || is_long || text.split([' ', '/', '.', ':', ',']).any(is_one_word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_is_shown_unless_it_may_be_a_secret() {
        for (key, value, expected) in [
            ("front.listen", json!(":8080"), "\":8080\""),
            ("sessions.idle_secs", json!(-1), "-1"),
            ("log.level", json!("info,front=loud"), "\"info,front=loud\""),
            ("front.public_url", json!("mcp.example.com"), "\"mcp.example.com\""),
            ("front.allowed_hosts", json!(["a"]), "a list"),
        ] {
            assert_eq!(shown(key, &value), expected);
        }
        for (key, value) in [
            ("store.password", json!("hunter2")),
            ("store.password", json!(12)),
            ("cluster.secret", json!("x")),
            ("store.url", json!("redis://h")),
            ("tenants.a.backends.b.env.LOG", json!(true)),
            ("log.level", json!("sk-proj-0123456789abcdefghij")),
            ("log.level", json!("Bearer 0123456789abcdefghij")),
            ("front.public_url", json!("https://user:pass@host")),
        ] {
            let shown = shown(key, &value);
            assert!(shown.contains("may be a secret"), "{key}: {shown}");
        }
    }
}
