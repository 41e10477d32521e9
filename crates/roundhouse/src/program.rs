//! Runs each command of the program. Standard output carries only the result of the command; logs
//! are written to standard error.

use std::io::{self, Write as _};
use std::path::Path;

use std::sync::Arc;

use anyhow::{Context as _, bail};
use cluster::Cluster;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use telemetry::Otlp;

use crate::added_admin_keys::{self, NewAdminKey};
use crate::added_keys::{self, NewKey};
use crate::assemble::stop_otlp;
use crate::cli::{Add, AdminKey, Check, Command, Import, Key, Serve, Stdio};
use crate::client_file::{self, Server};
use crate::descriptors::{self, Descriptors};
use crate::memory::Memory;
use crate::plan::Plan;
use crate::reload::SettingsSource;
use crate::settings::{
    self, BackendSettings, Environment, Problems, Reading, Settings, TenantSettings,
};
use crate::signals::Signals;
use crate::{
    Node, Roundhouse, added_tenants, certificates, demo, homes, operator_commands, pin_command,
    sandbox, started_servers,
};

/// Runs the command until it is done or the process is asked to stop.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(serve) => on_this_thread(self::serve(serve))?,
        Command::Stdio(stdio) => actix_rt::System::new().block_on(self::stdio(stdio)),
        Command::Check(check) => self::check(&check),
        Command::Add(add) => self::add(add),
        Command::Import(import) => self::import(&import),
        Command::Key(key) => self::key(&key),
        Command::Pin(pin) => print(&pin_command::run(&pin)?),
        Command::AdminKey(key) => admin_key(&key),
        Command::Operator(command) => print(&operator_commands::run(&command)?),
    }
}

fn on_this_thread<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(work))
}

async fn serve(serve: Serve) -> anyhow::Result<()> {
    let mut signals = Signals::of_server().context("cannot install signal handlers")?;
    let file = serve.config.clone();
    let is_demo = file.is_none();
    let read = Arc::new(move || reading(&serve));
    let reading = read()?;
    let source = SettingsSource::new(file.clone(), read, &reading);
    // A wrong level is reported with everything else that is wrong.
    let plan = Roundhouse::from_reading(reading).reloading(source).plan()?;
    telemetry::init(&plan.settings.log)?;
    raise_descriptor_limit();
    let store = plan.settings.store.kind();
    let node = tokio::select! {
        started = Node::start(plan) => started?,
        // The node may be waiting for its store.
        () = signals.next_signal() => return Ok(()),
    };
    if is_demo && !node.address().ip().is_loopback() {
        tracing::warn!(address = %node.address(), "the endpoint is open to every client that can reach this address");
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        settings = ?file.as_deref().unwrap_or(Path::new("none")),
        store,
        clients = %node.address(),
        operators = node.admin_url(),
        tenants = node.tenants().len(),
        "node started"
    );
    print(&endpoints(&node))?;
    if !signals.stop_in_order(node).await {
        bail!("other nodes marked this process dead; start it again");
    }
    telemetry::report_left_out();
    telemetry::flush_access_log();
    tracing::info!("stopped");
    Ok(())
}

/// The settings of `serve`: those of the command line, over the environment, over the file.
fn reading(serve: &Serve) -> Result<Reading, Problems> {
    let mut reading =
        demo::settings(serve.config.as_deref(), &serve.command, &Environment::of_process())?;
    if let Some(listen) = serve.listen {
        reading.settings.front.listen = listen;
    }
    if let Some(admin) = &serve.admin {
        reading.settings.admin.listen = admin.clone();
    }
    Ok(reading)
}

/// Each connection is a descriptor, and many systems allow a process only 1,024 by default.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "raising the limit of descriptors failed; the limit is unchanged");
    }
}

fn endpoints(node: &Node) -> String {
    let tenants = node.tenants().iter().map(|name| format!("tenant {name}: {}\n", node.url(name)));
    let admin = node.admin_url();
    let metrics = if admin.starts_with("http") { "/metrics" } else { "" };
    tenants.chain([format!("admin: {admin}{metrics}\n")]).collect()
}

async fn stdio(stdio: Stdio) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("cannot install signal handlers")?;
    let mut reading = demo::settings(stdio.config.as_deref(), &[], &Environment::of_process())?;
    reading.settings.explain_failed_starts();
    let plan = Roundhouse::from_reading(reading).plan()?;
    if plan.settings.audit.to == audit::To::Stdout {
        bail!(
            "`audit.to` is \"stdout\", which carries the messages to the client of this command; write \
             `audit.to = \"file\"` or \"syslog\""
        );
    }
    telemetry::init(&plan.settings.log)?;
    plan.prepare_servers()?;
    let Some(tenant) = plan.tenants.find(&stdio.tenant) else {
        bail!("there is no tenant `{}`; there is: {}", stdio.tenant, names(&plan.settings));
    };
    // A client over standard streams uses a single node.
    let membership = Cluster::alone(Arc::clone(&plan.store));
    let cluster = membership.cluster().clone();
    let otlp = Otlp::start(&plan.settings.otlp, &plan.name_in(&cluster))?;
    let (handle, grace) = (plan.handle(membership, otlp.traces()), plan.drain());
    let line_bytes_max = plan.settings.front.body_bytes_max;
    let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
    let reporting = match plan.reporting(&cluster, otlp.traces()) {
        Ok(reporting) => reporting,
        Err(error) => {
            stop_otlp(otlp).await;
            return Err(error.into());
        }
    };
    let serving =
        front::serve_stdio(&handle, &tenant, line_bytes_max, grace, stdin, stdout, &reporting);
    let served = tokio::select! {
        served = serving => served.context("standard input or output is broken"),
        () = signals.next_signal() => Ok(()),
    };
    let stopping = async {
        handle.stop(grace).await;
        plan.wait_for_children().await;
        stop_otlp(otlp).await;
    };
    signals.unless_again(stopping).await;
    reporting.audit.close();
    telemetry::report_left_out();
    telemetry::flush_access_log();
    // A thread of the runtime may still be blocked in a read of standard input. It would keep the
    // process alive until its client writes something more.
    std::process::exit(match served {
        Ok(()) => 0,
        Err(error) => {
            // If no process reads standard error, only the exit code reports the failure.
            let _ = writeln!(io::stderr(), "roundhouse: {error:#}");
            1
        }
    })
}

fn names(settings: &Settings) -> String {
    settings.tenants.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn check(check: &Check) -> anyhow::Result<()> {
    let mut reading = Settings::examine(None, Some(&check.config), &Environment::of_process());
    if check.start {
        reading.settings.explain_failed_starts();
    }
    // Planning needs a runtime. This one never runs, so nothing is connected.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    let plan = Roundhouse::from_reading(reading).plan()?;
    let mut findings = plan.findings.clone();
    if let Some(read) = &plan.certificates {
        // A node starts with them. An operator who checks settings can still do something.
        let ended = certificates::ended(&plan.settings.front.tls, &read.pairs);
        ended.into_values().for_each(|text| findings.add(text));
    }
    if findings.has_errors() {
        return Err(findings.into());
    }
    for warning in descriptors_of(&plan.settings).warnings() {
        findings.warn(warning);
    }
    let certificates = plan.certificates.as_ref();
    let certificates = certificates.map(|read| certificates::summary(&read.pairs));
    let found = found(&check.config, &plan.settings, &certificates.unwrap_or_default());
    print(&format!("{found}{}", protections(&plan)))?;
    let warnings = findings.findings();
    for warning in &warnings {
        print(&format!("{warning}\n"))?;
    }
    if check.strict && !warnings.is_empty() {
        bail!("the file is refused because of its warnings (--strict): {}", warnings.len());
    }
    if check.start {
        homes::create(&plan.homes)?;
        // The log has what the servers write to standard error.
        telemetry::init(&plan.settings.log)?;
        let started = runtime.block_on(started_servers::start_each(&plan));
        print(&started.text)?;
        if started.failed > 0 {
            bail!("servers that did not start: {}; the lines above say why", started.failed);
        }
    }
    Ok(())
}

fn add(add: Add) -> anyhow::Result<()> {
    let mut words = add.command.into_iter();
    let command = words.next().context("write the command behind `--`")?;
    let (tenant, env) = (add.name, add.env.into_iter().collect());
    let server = Server { tenant, command, args: words.collect(), env, env_file: None, cwd: None };
    let findings = added_tenants::add(&add.into, std::slice::from_ref(&server))?;
    say_notes(added_tenants::notes(&server).into_iter().chain(findings));
    print(&format!("added tenant {} to {}\n", server.tenant, add.into.display()))
}

fn import(import: &Import) -> anyhow::Result<()> {
    let text = settings::file_text(&import.file).map_err(anyhow::Error::msg)?;
    let servers = client_file::read(&text)
        .map_err(|why| anyhow::anyhow!("{}: {why}", import.file.display()))?;
    let left_out =
        servers.left_out.iter().map(|(name, why)| format!("`{name}` is left out: {why}"));
    let notes = servers.taken.iter().flat_map(added_tenants::notes);
    say_notes(left_out.chain(servers.notes.iter().cloned()).chain(notes));
    if servers.taken.is_empty() {
        bail!("{} has no server that can be hosted; nothing was written", import.file.display());
    }
    let Some(into) = &import.into else {
        return print(added_tenants::toml(&servers.taken).trim_start());
    };
    say_notes(added_tenants::add(into, &servers.taken)?.into_iter());
    let names: Vec<_> = servers.taken.iter().map(|server| server.tenant.as_str()).collect();
    print(&format!("added tenants {} to {}\n", names.join(", "), into.display()))
}

fn key(key: &Key) -> anyhow::Result<()> {
    let Key { tenant, name, into, .. } = key;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || !name.chars().all(is_plain) {
        bail!("the name of a key has letters of ASCII, digits, `-` and `_` only; write another");
    }
    let new = NewKey::make(key.subject.as_deref(), key.days, key.scope.clone())?;
    new.check(tenant, name)?;
    if key.print {
        let table = format!("write this into the settings:\n{}", new.toml(tenant, name));
        let header = format!("in a file of node.tenants_dir the header is [keys.{name}]");
        say_notes([table, header].into_iter());
    } else {
        let findings = added_keys::add(into, tenant, name, &new)?;
        let added = format!(
            "added `tenants.{tenant}.keys.{name}` to {}; a running node applies it if nothing in its settings is wrong",
            into.display()
        );
        say_notes(findings.into_iter().chain([added]));
    }
    say_notes(["the key is shown this once".to_owned()].into_iter());
    print(&format!("{}\n", new.key))
}

fn admin_key(key: &AdminKey) -> anyhow::Result<()> {
    let AdminKey { name, into, .. } = key;
    let new = NewAdminKey::make(name, &key.role.to_string(), key.days)?;
    if key.print {
        let table = format!("write this into the settings:\n{}", new.toml());
        say_notes([table].into_iter());
    } else {
        let findings = added_admin_keys::add(into, &new)?;
        let added = format!(
            "added `admin.credentials.{name}` to {}; a running node applies it if nothing in its settings is wrong",
            into.display()
        );
        say_notes(findings.into_iter().chain([added]));
    }
    say_notes(
        ["the token is shown this once; write it into a file with mode 600".to_owned()].into_iter(),
    );
    print(&format!("{}\n", new.token))
}

/// Writes notes to standard error, since standard output may be the settings themselves.
fn say_notes(notes: impl Iterator<Item = String>) {
    for note in notes {
        // If no process reads standard error, the notes are lost.
        let _ = writeln!(io::stderr(), "note: {note}");
    }
}

fn found(file: &Path, settings: &Settings, certificates: &str) -> String {
    let mut found = format!("{} is fine\n", file.display());
    let over_tls = if settings.front.tls.is_on() { " over TLS" } else { "" };
    found += &format!("clients: {}{over_tls}\n{certificates}", settings.front.listen);
    found += &format!("operators: {}\n", settings.admin.listen);
    for (name, tenant) in &settings.tenants {
        let auth = tenant.tenant.auth.clone().unwrap_or_default();
        let words = auth.words().map(|word| match word {
            "keys" => format!("keys ({})", tenant.tenant.keys.len()),
            "oauth" => format!("oauth ({})", tenant.tenant.oauth.issuer),
            word => word.to_owned(),
        });
        let auth = words.collect::<Vec<_>>().join(" and ");
        let hosts = tenant.tenant.hosts.iter().map(|host| format!(", /mcp at {host}"));
        let hosts = hosts.collect::<String>();
        let backends = backends(tenant);
        found += &format!("tenant {name}: /{name}/mcp{hosts}, auth {auth}, {backends}\n");
    }
    let descriptors = descriptors_of(settings);
    found += &format!("{}\n", descriptors.summary());
    found += &format!("{}\n", Memory::of(settings, descriptors.connections_total()).summary());
    found
}

/// `serve` raises its limit to the same value, if it is started with the limits of this shell.
fn descriptors_of(settings: &Settings) -> Descriptors {
    Descriptors::of(descriptors::limit_of_process(), settings)
}

fn protections(plan: &Plan) -> String {
    if sandbox::stdio_backends(&plan.settings).next().is_none() {
        return String::new();
    }
    let or_none = |list: String| if list.is_empty() { "none".to_owned() } else { list };
    let (granted, refused) = (plan.protections.granted(), plan.protections.refused());
    format!(
        "protections of stdio servers on this machine: {}; refused: {}\n",
        or_none(granted),
        or_none(refused)
    )
}

fn backends(tenant: &TenantSettings) -> String {
    let one = |(name, backend): (&String, &BackendSettings)| match backend {
        BackendSettings::Stdio(stdio) => {
            format!("backend {name} (stdio: {})", stdio.program.command)
        }
        // Neither its path nor its query: they may be secret.
        BackendSettings::Http(_) => format!("backend {name} (http)"),
        BackendSettings::Native(native) => format!("backend {name} (native: {})", native.name),
    };
    tenant.backends.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to standard output")
}
