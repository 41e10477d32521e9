//! Reads the servers of a client's configuration: `mcpServers` of Claude Desktop, `.mcp.json` and
//! Cursor, or `servers` of VS Code. Never starts anything, and expands nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value as Json};

/// A server that a client starts, as a tenant of a node.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// The name of the tenant, made from the name in the client's file.
    pub(crate) tenant: String,
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) env_file: Option<String>,
    pub(crate) cwd: Option<String>,
}

/// Prints no argument and no value of a variable: they may be secret.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("tenant", &self.tenant)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

/// What a client's file has.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    pub(crate) taken: Vec<Server>,
    /// The names of servers that are not taken, each with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    /// What an operator should know of the servers that are taken.
    pub(crate) notes: Vec<String>,
}

/// Reads the text of a client's file. The error says what is wrong with the whole file.
pub(crate) fn read(text: &str) -> Result<Servers, String> {
    let file: Json = serde_json::from_str(&without_comments(text)).map_err(|error| {
        format!(
            "line {}: this is not JSON; name the file of a client, as .mcp.json or \
             claude_desktop_config.json",
            error.line()
        )
    })?;
    let entries = ["/mcpServers", "/servers", "/mcp/servers", "/mcp/mcpServers"]
        .into_iter()
        .find_map(|path| file.pointer(path)?.as_object());
    let Some(entries) = entries else {
        return Err("has neither `mcpServers` nor `servers`; name the file of a client, as \
                    .mcp.json or claude_desktop_config.json"
            .into());
    };
    let mut servers = Servers::default();
    for (name, entry) in entries {
        servers.add(name, entry);
    }
    Ok(servers)
}

impl Servers {
    fn add(&mut self, name: &str, entry: &Json) {
        match self.server(name, entry) {
            Ok(server) => self.taken.push(server),
            Err(why) => self.left_out.push((name.to_owned(), why)),
        }
    }

    fn server(&mut self, name: &str, entry: &Json) -> Result<Server, String> {
        let entry = entry.as_object().ok_or("its entry is not an object")?;
        let kind = entry.get("type").or(entry.get("transport")).and_then(Json::as_str);
        let is_remote = entry.contains_key("url") || entry.contains_key("serverUrl");
        if is_remote || kind.is_some_and(|kind| kind != "stdio") {
            return Err(
                "it is reached over HTTP; a node hosts servers that it starts itself, and \
                        cannot forward to another one yet"
                    .into(),
            );
        }
        if entry.get("disabled").and_then(Json::as_bool) == Some(true) {
            return Err("it is disabled in the client's file".into());
        }
        let command = text(entry, "command").ok_or("it has no `command`")?;
        let tenant = tenant_name(name).ok_or("its name has no letter or digit")?;
        if self.taken.iter().any(|other| other.tenant == tenant) {
            return Err(format!("its tenant would be named `{tenant}`, as that of another server"));
        }
        if tenant != name {
            self.notes.push(format!(
                "`{name}` is named `{tenant}`, since the name stands in the endpoint's path"
            ));
        }
        let args = entry.get("args").and_then(Json::as_array);
        let args = args.map(|all| all.iter().map(word).collect()).unwrap_or_default();
        let env = entry.get("env").and_then(Json::as_object);
        let env =
            env.map(|env| env.iter().map(|(key, value)| (key.clone(), word(value))).collect());
        Ok(Server {
            tenant,
            command,
            args,
            env: env.unwrap_or_default(),
            env_file: text(entry, "envFile"),
            cwd: text(entry, "cwd"),
        })
    }
}

fn text(entry: &Map<String, Json>, key: &str) -> Option<String> {
    entry.get(key).and_then(Json::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A client passes numbers and truth values as text.
fn word(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A name that an endpoint's path may contain; `None` if nothing is left of it.
pub(crate) fn tenant_name(name: &str) -> Option<String> {
    let mut tenant = String::new();
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        match c {
            'a'..='z' | '0'..='9' | '_' => tenant.push(c),
            _ if tenant.ends_with('-') => {}
            _ => tenant.push('-'),
        }
    }
    let tenant = tenant.trim_matches(['-', '_']);
    let tenant: String = tenant.chars().take(64).collect();
    (!tenant.is_empty()).then_some(tenant)
}

/// The text without the comments and the commas at the end of lists that VS Code accepts.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut in_text = false;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        match c {
            '\\' if in_text => {
                length += rest[length..].chars().next().map_or(0, char::len_utf8);
                plain.push_str(&rest[..length]);
            }
            '"' => {
                in_text = !in_text;
                plain.push(c);
            }
            '/' if !in_text && rest.starts_with("//") => {
                length = rest.find('\n').unwrap_or(rest.len());
            }
            '/' if !in_text && rest.starts_with("/*") => {
                length = rest.find("*/").map_or(rest.len(), |end| end + 2);
                let lines = rest[..length].matches('\n').count();
                plain.extend(std::iter::repeat_n('\n', lines));
            }
            ']' | '}' if !in_text => {
                let before = plain.trim_end();
                if before.ends_with(',') {
                    // Line ends stay, so that an error names the right line.
                    let tail = plain[before.len()..].to_owned();
                    plain.truncate(before.len() - 1);
                    plain.push_str(&tail);
                }
                plain.push(c);
            }
            _ => plain.push(c),
        }
        rest = &rest[length..];
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_clients_file_is_read() {
        for file in [
            r#"{"mcpServers": {"files": {"command": "npx", "args": ["-y", 3], "env": {"A": "1"}}}}"#,
            r#"{"servers": {"files": {"type": "stdio", "command": "npx", "args": ["-y", "3"],
                "env": {"A": 1}}}, "inputs": []}"#,
            "{ // for the project\n\"mcp\": {\"servers\": {/* one */ \"files\": {
                \"command\": \"npx\", \"args\": [\"-y\", \"3\",], \"env\": {\"A\": \"1\"},}}}}",
        ] {
            let servers = read(file).unwrap();
            let [server] = &servers.taken[..] else { panic!("{servers:?}") };
            assert_eq!((server.tenant.as_str(), server.command.as_str()), ("files", "npx"));
            assert_eq!((server.args.join(" ").as_str(), server.env["A"].as_str()), ("-y 3", "1"));
            let printed = format!("{server:?}");
            assert!(printed.contains("files") && !printed.contains('3'), "{printed}");
        }
        assert!(read("{\"a\": 1}").unwrap_err().contains("neither `mcpServers` nor `servers`"));
        assert!(read("{\n\"a\": }").unwrap_err().starts_with("line 2: this is not JSON"));
    }

    #[test]
    fn a_comment_mark_in_a_text_is_no_comment() {
        let text = r#"{"a": "https://b/*c*/ \" // d", "e": ",]"}"#;
        assert_eq!(without_comments(text), text);
    }

    #[test]
    fn servers_that_cannot_be_hosted_are_left_out_with_the_reason() {
        let file = r#"{"mcpServers": {
            "web": {"url": "https://a.example/mcp"}, "sse": {"type": "sse", "command": "x"},
            "off": {"command": "x", "disabled": true}, "none": {}, "!": {"command": "x"},
            "My Files": {"command": "x"}, "my-files": {"command": "y"}}}"#;
        let servers = read(file).unwrap();
        assert_eq!(servers.taken.len(), 1);
        assert_eq!(servers.taken[0].tenant, "my-files");
        assert!(servers.notes[0].contains("`My Files` is named `my-files`"), "{servers:?}");
        let reasons: BTreeMap<_, _> = servers.left_out.into_iter().collect();
        for (name, wanted) in [
            ("web", "over HTTP"),
            ("sse", "over HTTP"),
            ("off", "disabled"),
            ("none", "no `command`"),
            ("!", "no letter"),
            ("my-files", "another server"),
        ] {
            assert!(reasons[name].contains(wanted), "{name}: {reasons:?}");
        }
    }
}
