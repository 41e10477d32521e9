//! `roundhouse pin`: starts the servers of a tenant, and writes the fingerprints of what they say of their tools
//! and prompts into the tenant's file of pins.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use catalog::{Fingerprint, MemberSettings, Members, Part, ServerPins};
use protocol::{ListPage, Listed, instructions_of};
use serde_json::json;
use tokio::time::timeout;

use crate::asked_server::AskedServer;
use crate::cli::Pin;
use crate::pins::{self, PinFile};
use crate::settings::{Digests, Environment, Problems, Reading, Settings};
use crate::{Roundhouse, homes, settings_file, started_servers};

/// The lists whose entries are pinned.
const LISTS: [Listed; 2] = [Listed::Tool, Listed::Prompt];

/// The permissions of a new file: it holds no secret, and the node may run as another user.
const MODE: u32 = 0o644;

/// What a server says, for one who reviews it.
#[derive(Default)]
struct Said {
    pins: ServerPins,
    /// The definitions, by what and by name.
    texts: BTreeMap<(&'static str, String), String>,
}

/// Runs the command. Returns what it prints.
pub(crate) fn run(pin: &Pin) -> anyhow::Result<String> {
    let Reading { settings, problems, digests } =
        Settings::examine(None, Some(&pin.config), &Environment::of_process());
    let settings = problems.clone().or(settings)?;
    telemetry::init(&settings.log)?;
    run_with(pin, &settings, &digests)
}

fn run_with(pin: &Pin, settings: &Settings, digests: &Digests) -> anyhow::Result<String> {
    let tenant = &*pin.tenant;
    let wanted = Wanted::of(pin, settings)?;
    let path = pins::file_of(settings, tenant);
    let mut former = BTreeMap::new();
    if path.exists() {
        former = PinFile::read(&path).map_err(anyhow::Error::msg)?.servers;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    let (mut servers, mut report, mut count) = (BTreeMap::new(), String::new(), 0);
    for (name, backend) in &settings.tenants[tenant].backends {
        if wanted.of_users.contains(name) {
            let (line, kept) = unasked(name, former.get(name), &path);
            report += &line;
            count += usize::from(!former.contains_key(name));
            servers.insert(name.clone(), kept);
            continue;
        }
        if !wanted.asked.contains(name) {
            let kept = former.get(name).filter(|_| backend.member().pin != catalog::Pin::Off);
            servers.extend(kept.map(|kept| (name.clone(), kept.clone())));
            continue;
        }
        let alone = only(settings, tenant, name);
        let reading =
            Reading { settings: alone, problems: Problems::default(), digests: digests.clone() };
        let plan = Roundhouse::from_reading(reading).plan()?;
        homes::create(&plan.homes)?;
        let (secs, key) = started_servers::start_secs(&plan.settings, tenant);
        let server = plan.backends.of(tenant).context("the tenant has no server")?;
        let asking = ask(&*server, name, backend.member());
        let said = runtime.block_on(async {
            let said = timeout(Duration::from_secs(secs), asking).await;
            plan.wait_for_children().await;
            said.unwrap_or_else(|_| Err(format!("did not answer within {secs} s (`{key}`)")))
        });
        let said = said.map_err(|why| anyhow::anyhow!("the server `{name}` failed: {why}"))?;
        let before = former.get(name).cloned().unwrap_or_default();
        count += differences(name, &before, &said, pin.show, &mut report);
        servers.insert(name.clone(), said.pins);
    }
    for name in former.keys().filter(|name| !servers.contains_key(*name)) {
        count += 1;
        // Writing into a string cannot fail.
        let _ = writeln!(report, "{name}: gone: the tenant has no such backend with `pin`");
    }
    let is_same = servers == former;
    let shown = path.display();
    match (pin.check, is_same) {
        (true, true) => Ok(format!("{report}{shown}: nothing differs\n")),
        (true, false) => bail!(
            "{report}{shown}: differences: {count}; review them, and run `roundhouse pin {tenant}`"
        ),
        (false, true) => Ok(format!("{report}{shown}: unchanged\n")),
        (false, false) => {
            write(&path, servers)?;
            Ok(format!("{report}{shown}: written; differences: {count}\n"))
        }
    }
}

/// The backends whose fingerprints the command is to write or compare.
struct Wanted {
    asked: Vec<String>,
    /// Those that it cannot ask: their servers need a token of a user.
    of_users: Vec<String>,
}

impl Wanted {
    fn of(pin: &Pin, settings: &Settings) -> anyhow::Result<Self> {
        let tenant = &pin.tenant;
        let written = settings.tenants.get(tenant);
        let written = written.with_context(|| format!("there is no tenant `{tenant}`"))?;
        let pinned = written.backends.iter().filter(|(_, b)| b.member().pin != catalog::Pin::Off);
        let pinned: Vec<_> = pinned.map(|(name, _)| name.clone()).collect();
        if let Some(other) = pin.backend.iter().find(|name| !pinned.contains(name)) {
            bail!("the tenant `{tenant}` has no backend `{other}` with `pin`");
        }
        if pinned.is_empty() {
            bail!(
                "no backend of the tenant `{tenant}` has `pin`; write `pin = \"warn\"` or `pin = \"refuse\"` into \
                 its table first"
            );
        }
        let wanted = if pin.backend.is_empty() { pinned } else { pin.backend.clone() };
        let needs_user = |name: &String| written.backends[name].exchanges_tokens();
        let (of_users, asked) = wanted.into_iter().partition(needs_user);
        Ok(Self { asked, of_users })
    }
}

/// The line about a server that needs a token of a user, and what is pinned of it: what the file has. Without a table
/// in the file the node would not start.
fn unasked(name: &str, former: Option<&ServerPins>, path: &Path) -> (String, ServerPins) {
    let sign = if former.is_some() { "not compared" } else { "new: an empty table" };
    let line = format!(
        "{name}: {sign}: the server needs a token of a user, which this command does not have; copy the \
         fingerprints that the log of a node with `pin = \"warn\"` has into the table [servers.{name}] of {}\n",
        path.display()
    );
    (line, former.cloned().unwrap_or_default())
}

/// The settings with this backend only, whose names stay as they are.
fn only(settings: &Settings, tenant: &str, backend: &str) -> Settings {
    let mut only = settings.clone();
    only.tenants.retain(|name, _| name == tenant);
    for written in only.tenants.values_mut() {
        written.backends.retain(|name, _| name == backend);
        for backend in written.backends.values_mut() {
            *backend.member_mut() = MemberSettings::default();
        }
    }
    only
}

/// Asks a server what it says. What its settings deny is not pinned.
async fn ask(
    backend: &dyn backends::Backend,
    name: &str,
    member: &MemberSettings,
) -> Result<Said, String> {
    // Servers may offer more to clients that can do more.
    let capabilities = json!({
        "roots": { "listChanged": true },
        "sampling": {},
        "elicitation": {},
    });
    let mut server = AskedServer::open(backend, "roundhouse pin", capabilities).await?;
    let said = read(&mut server, name, member).await;
    server.end();
    said
}

async fn read(
    server: &mut AskedServer,
    name: &str,
    member: &MemberSettings,
) -> Result<Said, String> {
    let members = Members::new([(name, member)]);
    let members = members.map_err(|wrong| format!("has wrong settings: {wrong:?}"))?;
    let mut said = Said::default();
    if let Some(text) = instructions_of(server.welcome(), usize::MAX) {
        said.pins.instructions = Some(Fingerprint::of_instructions(&text));
        said.texts.insert((Part::Instructions.as_str(), String::new()), text);
    }
    for listed in LISTS {
        for page in server.list(listed).await? {
            let page = ListPage::read(&page, listed);
            let page = page.ok_or_else(|| format!("sent no list to `{}`", listed.method()))?;
            for entry in &page.entries {
                let Some(own) = entry.name.as_deref() else { continue };
                let fingerprint = Fingerprint::of_entry(listed, entry.raw);
                let Some(fingerprint) = fingerprint.filter(|_| members.offers(listed, own)) else {
                    continue;
                };
                // Of two entries with one name a catalog offers the first.
                let all = match listed {
                    Listed::Prompt => &mut said.pins.prompts,
                    _ => &mut said.pins.tools,
                };
                all.entry(own.to_owned()).or_insert(fingerprint);
                let key = (Part::Entry(listed).as_str(), own.to_owned());
                said.texts.entry(key).or_insert_with(|| entry.raw.to_owned());
            }
        }
    }
    Ok(said)
}

/// Adds a line to `report` for each difference. Returns their number.
fn differences(
    server: &str,
    former: &ServerPins,
    said: &Said,
    shows: bool,
    report: &mut String,
) -> usize {
    let mut count = 0;
    let (before, now) = (named(former), named(&said.pins));
    let mut keys: Vec<_> = before.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let (sign, text) = match (before.get(key), now.get(key)) {
            (None, _) => ("new", said.texts.get(key)),
            (_, None) => ("gone", None),
            (one, other) if one == other => continue,
            _ => ("changed", said.texts.get(key)),
        };
        count += 1;
        let (what, name) = key;
        let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        // Writing into a string cannot fail.
        let _ = writeln!(report, "{server}: {sign}: {what}{name}");
        if let Some(text) = text.filter(|_| shows) {
            let _ = writeln!(report, "{}", readable(text));
        }
    }
    count
}

/// Everything that is pinned, by what and by name.
fn named(pins: &ServerPins) -> BTreeMap<(&'static str, String), Fingerprint> {
    let all = |listed: Listed, all: &BTreeMap<String, Fingerprint>| {
        let what = Part::Entry(listed).as_str();
        all.iter().map(|(name, found)| ((what, name.clone()), *found)).collect::<Vec<_>>()
    };
    let tools = all(Listed::Tool, &pins.tools);
    let prompts = all(Listed::Prompt, &pins.prompts);
    let instructions = pins.instructions.map(|f| ((Part::Instructions.as_str(), String::new()), f));
    tools.into_iter().chain(prompts).chain(instructions).collect()
}

/// A text of a server, which cannot control a terminal.
fn readable(text: &str) -> String {
    let value = serde_json::from_str::<serde_json::Value>(text);
    let pretty = value.ok().and_then(|value| serde_json::to_string_pretty(&value).ok());
    let text = pretty.unwrap_or_else(|| text.to_owned());
    let shown = |c: char| match c {
        '\n' => "\n  ".to_owned(),
        ' ' => " ".to_owned(),
        c if c.is_ascii_graphic() || c.is_alphanumeric() => c.to_string(),
        c => c.escape_unicode().to_string(),
    };
    format!("  {}", text.chars().map(shown).collect::<String>())
}

fn write(path: &Path, servers: BTreeMap<String, ServerPins>) -> anyhow::Result<()> {
    let text = PinFile::new(servers).text()?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{} cannot be created", folder.display()))?;
    }
    settings_file::replace(path, &text, MODE)
        .with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the command for a tenant whose file of pins names these backends. Returns what it prints, and the file.
    fn pinned(backends: &str, former: &[&str], check: bool) -> (anyhow::Result<String>, String) {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("roundhouse.toml");
        let (dir, state) = (folder.path().join("pins"), folder.path().join("state"));
        let text = format!(
            "[node]\npins_dir = {dir:?}\nstate_dir = {state:?}\n[front]\npublic_url = 'https://mcp.example.com'\n\
             [tenants.acme]\nauth = 'oauth'\noauth.issuer = 'https://issuer.example.com'\n{backends}"
        );
        std::fs::write(&config, text).unwrap();
        let servers = former.iter().map(|name| ((*name).to_owned(), ServerPins::default()));
        write(&dir.join("acme.toml"), servers.collect()).unwrap();
        let read = Settings::examine(None, Some(&config), &Environment::of_process());
        let settings = read.problems.or(read.settings).unwrap();
        let (tenant, backend) = ("acme".to_owned(), Vec::new());
        let printed = run_with(
            &Pin { tenant, backend, check, show: false, config },
            &settings,
            &read.digests,
        );
        (printed, std::fs::read_to_string(dir.join("acme.toml")).unwrap())
    }

    fn of_users(name: &str, grant: &str) -> String {
        format!(
            "[tenants.acme.backends.{name}]\nkind = 'http'\nurl = 'https://{name}.example.com'\npin = 'warn'\n\
             credential.grant = '{grant}'\n"
        )
    }

    #[test]
    fn a_backend_that_the_settings_no_longer_have_is_named() {
        let backend = of_users("a", "token_exchange");
        let (printed, file) = pinned(&backend, &["a", "removed"], true);
        let refused = printed.unwrap_err().to_string();
        assert!(
            refused.contains("removed: gone: ") && refused.contains("differences: 1"),
            "{refused}"
        );
        assert!(file.contains("removed"), "it only compares");
        let (printed, file) = pinned(&backend, &["a", "removed"], false);
        assert!(
            printed.unwrap().contains("removed: gone: ") && !file.contains("removed"),
            "{file}"
        );
    }

    #[test]
    fn servers_that_need_tokens_of_users_are_named_with_the_remedy_and_keep_their_pins() {
        let backends =
            of_users("linked", "authorization_code") + &of_users("ours", "token_exchange");
        let (printed, _) = pinned(&backends, &["linked", "ours"], true);
        let printed = printed.unwrap();
        for name in ["linked", "ours"] {
            let line = format!("{name}: not compared: the server needs a token of a user");
            assert!(printed.contains(&line), "{printed}");
            assert!(printed.contains(&format!("into the table [servers.{name}] of ")), "{printed}");
        }
        let (printed, file) = pinned(&backends, &["linked"], false);
        assert!(printed.unwrap().contains("ours: new: an empty table: "));
        assert!(file.contains("[servers.linked") && file.contains("[servers.ours"), "{file}");
    }
}
