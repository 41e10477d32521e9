//! Adds tenants to a settings file: `roundhouse add` and `roundhouse import`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::bail;

use crate::client_file::Server;
use crate::secrets;
use crate::settings::values;
use crate::settings_file::SettingsFile;

/// The name of the backend of an added tenant.
const BACKEND: &str = "main";

/// The tables of these tenants, as TOML.
pub(crate) fn toml(servers: &[Server]) -> String {
    let text = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut tables = String::new();
    // Writing into a string cannot fail.
    for server in servers {
        let tenant = &server.tenant;
        let _ = write!(
            tables,
            "\n[tenants.{tenant}]\nauth = \"open\"  # every client that can reach the endpoint may \
             use it\n\n[tenants.{tenant}.backends.{BACKEND}]\nkind = \"stdio\"\ncommand = {}\n",
            text(&server.command)
        );
        if !server.args.is_empty() {
            let args: Vec<String> = server.args.iter().map(|arg| text(arg)).collect();
            let _ = writeln!(tables, "args = [{}]", args.join(", "));
        }
        for (key, value) in [("cwd", &server.cwd), ("env_file", &server.env_file)] {
            if let Some(value) = value {
                let _ = writeln!(tables, "{key} = {}", text(value));
            }
        }
        if !server.env.is_empty() {
            let env = server.env.iter().map(|(name, value)| {
                let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                let bare = !name.is_empty() && name.chars().all(is_bare);
                let name = if bare { name.clone() } else { text(name) };
                format!("{name} = {}", text(value))
            });
            let env: Vec<String> = env.collect();
            let _ = writeln!(tables, "env = {{ {} }}", env.join(", "));
        }
    }
    tables
}

/// What an operator should know of a server that is added.
pub(crate) fn notes(server: &Server) -> Vec<String> {
    let tenant = &server.tenant;
    let at = format!("tenants.{tenant}.backends.{BACKEND}");
    let mut notes = Vec::new();
    let written: Vec<&str> = server
        .env
        .iter()
        .filter(|(name, value)| {
            let is_secret = values::is_secret_key(name) || values::looks_secret(value);
            is_secret && !has_input(value)
        })
        .map(|(name, _)| name.as_str())
        .collect();
    if !written.is_empty() {
        notes.push(format!(
            "`{at}.env` holds what looks like a secret ({}); better write it into a file of its own \
             that other users may not read, and name it with `env_file`",
            written.join(", ")
        ));
    }
    let is_unchanged = |(_, value): &(&String, &String)| !secrets::has_reference(value);
    let env = server.env.iter().filter(is_unchanged);
    let env = env.map(|(name, value)| (format!("env.{name}"), value));
    let args = server.args.iter().map(|arg| ("args".to_owned(), arg));
    let others = [("command", Some(&server.command)), ("cwd", server.cwd.as_ref())];
    let others = others.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let mut with_input: Vec<String> =
        env.chain(args).chain(others).filter(|(_, v)| has_input(v)).map(|(key, _)| key).collect();
    with_input.dedup();
    for key in with_input {
        notes.push(format!(
            "`{at}.{key}` has a part such as ${{NAME}}, which only the client replaces; a node passes \
             it on unchanged: write the value itself, or leave the variable out of `env` and write \
             it into an `env_file`"
        ));
    }
    notes
}

/// Does a client replace a part of this text?
fn has_input(text: &str) -> bool {
    text.split_once("${").is_some_and(|(_, rest)| rest.contains('}'))
}

/// Adds the tenants to the file, which is created if it is not there. Returns what an operator
/// should know of the result.
pub(crate) fn add(file: &Path, servers: &[Server]) -> anyhow::Result<Vec<String>> {
    let old = SettingsFile::read(file)?;
    refuse_existing(file, old.text(), servers)?;
    old.append(&toml(servers))
}

/// A tenant that is in the file is never changed.
fn refuse_existing(file: &Path, old: &str, servers: &[Server]) -> anyhow::Result<()> {
    // Another error of the file is found when the result is checked.
    let Ok(old) = old.parse::<toml::Table>() else { return Ok(()) };
    let Some(tenants) = old.get("tenants").and_then(toml::Value::as_table) else { return Ok(()) };
    let there = servers.iter().map(|server| &server.tenant);
    let there: Vec<String> =
        there.filter(|name| tenants.contains_key(*name)).map(|n| format!("`{n}`")).collect();
    if there.is_empty() {
        return Ok(());
    }
    bail!(
        "{} has the tenant {} already; nothing was written: remove the tenant from the file, or \
         give the new one another name",
        file.display(),
        there.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(env: &[(&str, &str)]) -> Server {
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Server {
            tenant: "a".into(),
            command: "n\"px".into(),
            args: vec!["-y".into(), "a\\b".into()],
            env: env.collect(),
            env_file: None,
            cwd: Some("/srv".into()),
        }
    }

    #[test]
    fn the_tables_of_a_tenant_are_read_as_they_were_given() {
        let tables = toml(&[server(&[("A", "1"), ("b.c", "ü\n")])]);
        let read: toml::Table = tables.parse().unwrap();
        let main = &read["tenants"]["a"]["backends"]["main"];
        assert_eq!(main["command"].as_str(), Some("n\"px"));
        assert_eq!(main["args"][1].as_str(), Some("a\\b"));
        assert_eq!(main["env"]["b.c"].as_str(), Some("ü\n"));
        assert_eq!(main["cwd"].as_str(), Some("/srv"));
    }

    #[test]
    fn secrets_and_inputs_are_named_without_their_values() {
        let notes =
            notes(&server(&[("API_KEY", "hunter2"), ("LOG", "info"), ("TOKEN", "${input:token}")]));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("(API_KEY)") && !notes[0].contains("hunter2"), "{notes:?}");
        assert!(notes[1].contains("`tenants.a.backends.main.env.TOKEN`"), "{notes:?}");
    }
}
