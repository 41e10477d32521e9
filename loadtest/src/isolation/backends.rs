//! The kinds of backends, and the tenants of a measured node: for each kind one that is quiet, one
//! with the same servers for floods of its clients, and one whose server is hostile.

use std::fmt::Write as _;
use std::path::Path;

use super::flood::Flood;
use crate::mcp::Tool;

/// A kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Native,
    Stdio,
    Http,
    Catalog,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Native, Self::Stdio, Self::Http, Self::Catalog];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Catalog => "catalog",
        }
    }

    /// The floods that a tenant with such a backend can make. A native handler is part of the node, so
    /// it is not hostile.
    pub(crate) fn floods(self) -> &'static [Flood] {
        use Flood::{
            Arguments, Bodies, Calls, Events, Lists, Refusals, Results, Sessions, Streams,
        };
        match self {
            Self::Native => &[Calls, Arguments, Results, Sessions, Events],
            Self::Stdio => &[Calls, Arguments, Results, Sessions, Events, Lists, Bodies, Streams],
            Self::Http | Self::Catalog => {
                &[Calls, Arguments, Results, Sessions, Events, Lists, Bodies, Streams, Refusals]
            }
        }
    }

    /// The tool with this name of the servers of this kind: `echo` or `count`.
    pub(crate) fn tool(self, name: &str, arguments: String) -> Tool {
        let name = match self {
            Self::Native => format!("rh_{name}"),
            Self::Stdio | Self::Http => name.to_owned(),
            Self::Catalog => format!("process__{name}"),
        };
        Tool { name, arguments }
    }
}

/// The servers of the tenants.
pub(crate) struct Servers<'a> {
    /// The core of the flooding tenants' servers.
    pub(crate) core: usize,
    /// The URL of an honest server on the nodes' core, and of one on the floods' core.
    pub(crate) honest: [&'a str; 2],
    /// The URL of the hostile one.
    pub(crate) hostile: &'a str,
}

impl Servers<'_> {
    /// The settings of a node.
    pub(crate) fn settings(&self) -> anyhow::Result<String> {
        let this = std::env::current_exe()?;
        let greedy = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/servers/greedy.py");
        let native = "kind = 'native'\nname = 'everything'\n".to_owned();
        let mut settings = Settings(String::new());
        for (whose, honest) in std::iter::zip(["quiet", "noisy"], self.honest) {
            // A quiet server inherits the core of its node.
            let process = match whose {
                "quiet" => command(&this, &["serve", "child"]),
                _ => self.on_core(&this, &["serve", "child"]),
            };
            settings.tenant(whose, Kind::Native, &[("main", &native)]);
            settings.tenant(whose, Kind::Stdio, &[("main", &process)]);
            settings.tenant(whose, Kind::Http, &[("main", &http(honest))]);
            settings.tenant(
                whose,
                Kind::Catalog,
                &[("handler", &native), ("process", &process), ("remote", &http(honest))],
            );
        }
        let (python, hostile) = (Path::new("python3"), http(self.hostile));
        settings.tenant(
            "hostile",
            Kind::Stdio,
            &[("main", &self.on_core(python, &["-u", greedy]))],
        );
        settings.tenant("hostile", Kind::Http, &[("main", &hostile)]);
        settings.tenant("hostile", Kind::Catalog, &[("bad", &hostile), ("handler", &native)]);
        Ok(settings.0)
    }

    fn on_core(&self, program: &Path, arguments: &[&str]) -> String {
        let (core, program) = (self.core.to_string(), program.display().to_string());
        let before = ["-c", &core, &program];
        command(Path::new("taskset"), &[&before[..], arguments].concat())
    }
}

fn command(program: &Path, arguments: &[&str]) -> String {
    format!("kind = 'stdio'\ncommand = '{}'\nargs = {arguments:?}\n", program.display())
}

fn http(url: &str) -> String {
    format!("kind = 'http'\nurl = '{url}'\nallow_networks = ['127.0.0.0/8']\n")
}

struct Settings(String);

impl Settings {
    fn tenant(&mut self, whose: &str, kind: Kind, backends: &[(&str, &String)]) {
        let tenant = format!("{whose}-{}", kind.name());
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "[tenants.{tenant}]\nauth = 'open'");
        for (name, backend) in backends {
            let _ = writeln!(self.0, "[tenants.{tenant}.backends.{name}]\n{backend}");
        }
    }
}
