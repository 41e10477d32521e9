//! `[tenants.X.backends.Y]`: one MCP server of a tenant, by kind.

use std::collections::BTreeMap;
use std::path::PathBuf;

use actors::Definition;
use backends::http::{Grant, HttpSettings};
use backends::stdio::StdioSettings;
use catalog::MemberSettings;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::shape::Shape;
use crate::files;
use crate::node_variables::NodeVariables;
use crate::secrets::Secrets;

/// One MCP server of a tenant.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum BackendSettings {
    /// A program that serves MCP over its standard input and output.
    // In a box: the table around it allocates room for eleven backends, and has one.
    Stdio(Box<StdioFileSettings>),
    /// A server that is reached over HTTP.
    Http(Box<HttpFileSettings>),
    /// A handler that is part of this program.
    Native(Box<NativeSettings>),
}

/// `kind = "stdio"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct StdioFileSettings {
    /// A file with further variables of `env`, a line `NAME=value` for each.
    #[serde(default)]
    pub env_file: PathBuf,
    /// The names of variables of the node's environment that the server gets, in addition to
    /// `node.pass_env`.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// Whether the server keeps nothing from one request to the next, so that it may be stopped
    /// while its session is idle.
    #[serde(default)]
    pub stateless: bool,
    /// How it takes part in the catalog of its tenant.
    #[serde(flatten)]
    pub member: MemberSettings,
    /// The other settings.
    #[serde(flatten)]
    pub program: StdioSettings,
}

/// `kind = "http"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HttpFileSettings {
    /// How it takes part in the catalog of its tenant.
    #[serde(flatten)]
    pub member: MemberSettings,
    /// The other settings.
    #[serde(flatten)]
    pub http: HttpSettings,
}

impl StdioFileSettings {
    /// The settings of the program, with the file read and the variables of the node's environment
    /// added that are passed, and secrets of the tenant in place of references. `at` names the table in
    /// an error.
    pub(crate) fn read(
        &self,
        tenant: &str,
        at: &str,
        secrets: &Secrets,
        variables: &NodeVariables,
        node_pass_env: &[String],
    ) -> Result<StdioSettings, Vec<String>> {
        let mut program = StdioSettings { stateless: self.stateless, ..self.program.clone() };
        secrets.resolve(tenant, &format!("{at}.env"), &mut program.env)?;
        self.add_variables(at, variables, node_pass_env, &mut program).map_err(|why| vec![why])?;
        Ok(program)
    }

    fn add_variables(
        &self,
        at: &str,
        variables: &NodeVariables,
        node_pass_env: &[String],
        program: &mut StdioSettings,
    ) -> Result<(), String> {
        if !self.env_file.as_os_str().is_empty() {
            files::add_variables(&format!("{at}.env_file"), &self.env_file, &mut program.env)?;
        }
        variables.pass(&format!("{at}.pass_env"), &self.pass_env, &mut program.env)?;
        variables.pass("node.pass_env", node_pass_env, &mut program.env)
    }
}

/// `kind = "native"`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct NativeSettings {
    /// How it takes part in the catalog of its tenant.
    #[serde(flatten)]
    pub member: MemberSettings,
    /// The name of the handler: `everything`, with the feature `demo`, or one that the embedding
    /// program registers.
    pub name: String,
}

impl BackendSettings {
    /// Identifies the server: differs if another program or handler is written. It does not depend on
    /// values of variables, which may be secrets and must not be found in the store, nor on bounds, which
    /// later versions have more of.
    pub(crate) fn definition(&self) -> Definition {
        let written = match self {
            Self::Stdio(stdio) => {
                let StdioFileSettings { env_file, pass_env, program, .. } = &**stdio;
                let StdioSettings { command, args, env, cwd, user, .. } = program;
                let env: Vec<_> = env.keys().collect();
                serde_json::json!(["stdio", command, args, cwd, user, env, pass_env, env_file])
            }
            // The query may have a key, and a key may change.
            Self::Http(http) => {
                let place = http.http.url.split('?').next().unwrap_or_default();
                let headers: Vec<_> = http.http.headers.keys().collect();
                serde_json::json!(["http", place, headers])
            }
            Self::Native(native) => serde_json::json!(["native", native.name]),
        };
        definition_of(&written)
    }

    /// How it takes part in the catalog of its tenant.
    pub(crate) fn member(&self) -> &MemberSettings {
        match self {
            Self::Stdio(stdio) => &stdio.member,
            Self::Http(http) => &http.member,
            Self::Native(native) => &native.member,
        }
    }

    /// The same.
    pub(crate) fn member_mut(&mut self) -> &mut MemberSettings {
        match self {
            Self::Stdio(stdio) => &mut stdio.member,
            Self::Http(http) => &mut http.member,
            Self::Native(native) => &mut native.member,
        }
    }

    /// Identifies the servers of a tenant: that of the only backend, or of a catalog those of all, and
    /// how its names begin.
    pub(crate) fn definition_of_all(backends: &BTreeMap<String, Self>) -> Option<Definition> {
        let mut all = backends.iter();
        let (_, first) = all.next()?;
        if all.next().is_none() && first.member().is_plain() {
            return Some(first.definition());
        }
        let of = |(name, backend): (&String, &Self)| {
            let (definition, identity) = (backend.definition().0, backend.member().identity());
            serde_json::json!([name, identity, definition])
        };
        let all: Vec<_> = backends.iter().map(of).collect();
        Some(definition_of(&serde_json::json!(["catalog", all])))
    }

    /// Whether the server gets a token of each user.
    pub(crate) fn exchanges_tokens(&self) -> bool {
        let grants = [Grant::TokenExchange, Grant::AuthorizationCode];
        matches!(self, Self::Http(http) if grants.contains(&http.http.credential.grant))
    }

    /// Whether users link accounts at the server.
    pub(crate) fn links_accounts(&self) -> bool {
        matches!(self, Self::Http(http) if http.http.credential.grant == Grant::AuthorizationCode)
    }

    /// The key that a backend of this kind must have, and an example of it.
    pub(crate) fn required(kind: &str) -> Option<(&'static str, &'static str)> {
        match kind {
            "stdio" => Some(("command", "the program to run, as in `command = \"npx\"`")),
            "http" => Some(("url", "its endpoint, as in `url = \"https://mcp.example.com/mcp\"`")),
            "native" => Some(("name", "the name of a handler, as in `name = \"everything\"`")),
            _ => None,
        }
    }

    /// The kind of the backends that have this key.
    pub(crate) fn kind_with(key: &str) -> &'static str {
        let has_key = |defaults: serde_json::Result<serde_json::Value>| {
            defaults.is_ok_and(|defaults| defaults.get(key).is_some())
        };
        match key {
            "name" => "native",
            _ if has_key(serde_json::to_value(MemberSettings::default())) => "stdio",
            _ if has_key(serde_json::to_value(http())) => "http",
            _ => "stdio",
        }
    }

    pub(crate) fn shapes() -> BTreeMap<String, Shape> {
        BTreeMap::from([
            ("stdio".into(), Shape::of(&stdio())),
            ("http".into(), Shape::of(&http())),
            ("native".into(), Shape::of(&NativeSettings::default())),
        ])
    }
}

fn definition_of(written: &serde_json::Value) -> Definition {
    let digest: [u8; 32] = Sha256::digest(written.to_string()).into();
    let [a, b, c, d, ..] = digest;
    Definition(u32::from_be_bytes([a, b, c, d]))
}

/// The defaults of an `http` backend. Its URL has no default, and an empty one is refused.
pub(crate) fn http() -> HttpFileSettings {
    HttpFileSettings { member: MemberSettings::default(), http: HttpSettings::new("") }
}

/// The settings with secrets of the tenant in place of references. `at` names the table in an error.
pub(crate) fn read_http(
    http: &HttpSettings,
    tenant: &str,
    at: &str,
    secrets: &Secrets,
) -> Result<HttpSettings, Vec<String>> {
    let mut read = http.clone();
    secrets.resolve(tenant, &format!("{at}.headers"), &mut read.headers)?;
    let url = secrets.value(tenant, &format!("{at}.url"), &http.url).map_err(|why| vec![why])?;
    read.url = url.unwrap_or(read.url);
    let (key, written) = (format!("{at}.credential.client_secret"), &http.credential.client_secret);
    let secret = secrets.value(tenant, &key, written.expose()).map_err(|why| vec![why])?;
    read.credential.client_secret = secret.map_or(read.credential.client_secret, Into::into);
    let (key, written) =
        (format!("{at}.credential.sign_in.client_secret"), &http.credential.sign_in.client_secret);
    let secret = secrets.value(tenant, &key, written.expose()).map_err(|why| vec![why])?;
    let sign_in = &mut read.credential.sign_in;
    sign_in.client_secret = secret.map_or(sign_in.client_secret.clone(), Into::into);
    Ok(read)
}

/// The defaults of a `stdio` backend. Its command has no default, and an empty one is refused.
pub(crate) fn stdio() -> StdioFileSettings {
    StdioFileSettings {
        env_file: PathBuf::new(),
        pass_env: Vec::new(),
        stateless: false,
        member: MemberSettings::default(),
        program: StdioSettings::new("", [""; 0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of one backend has room for eleven, for each tenant.
    #[test]
    fn a_backend_is_small_in_the_table_of_its_tenant() {
        assert!(size_of::<BackendSettings>() <= 32, "{}", size_of::<BackendSettings>());
    }

    #[test]
    fn a_definition_depends_on_what_is_run_and_not_on_values_of_variables_or_bounds() {
        let of = |change: &dyn Fn(&mut StdioFileSettings)| {
            let mut stdio = stdio();
            stdio.program.command = "server".to_owned();
            stdio.program.env.insert("KEY".to_owned(), "a".to_owned());
            change(&mut stdio);
            BackendSettings::Stdio(Box::new(stdio)).definition()
        };
        let first = of(&|_| {});
        // Each node computes it, also one of another version, so this number stays.
        assert_eq!(first, Definition(3_068_179_760));
        let same: [&dyn Fn(&mut StdioFileSettings); 3] = [
            &|stdio| drop(stdio.program.env.insert("KEY".to_owned(), "b".to_owned())),
            &|stdio| stdio.program.warm = 3,
            &|stdio| stdio.stateless = true,
        ];
        assert!(same.iter().all(|change| of(change) == first));
        let others: [&dyn Fn(&mut StdioFileSettings); 3] = [
            &|stdio| stdio.program.command = "other".to_owned(),
            &|stdio| stdio.program.args.push("--more".to_owned()),
            &|stdio| drop(stdio.program.env.insert("NEW".to_owned(), "a".to_owned())),
        ];
        assert!(others.iter().all(|change| of(change) != first));
    }

    #[test]
    fn sessions_of_several_servers_are_carried_on_after_other_pins() {
        let of = |pin, deny: &str| {
            let mut backends = BTreeMap::new();
            for name in ["a", "b"] {
                let mut native = NativeSettings { name: name.to_owned(), ..Default::default() };
                native.member.pin = pin;
                native.member.deny_tools = vec![deny.to_owned()];
                backends.insert(name.to_owned(), BackendSettings::Native(Box::new(native)));
            }
            BackendSettings::definition_of_all(&backends)
        };
        let first = of(catalog::Pin::Off, "x");
        assert_eq!(first, of(catalog::Pin::Refuse, "x"));
        assert_ne!(first, of(catalog::Pin::Off, "y"));
    }
}
