//! The tenant `demo`, which is served when nothing is configured.

use std::ffi::OsString;
use std::path::Path;

use serde_json::json;

use crate::secrets;
use crate::settings::{BackendSettings, Environment, Problems, Reading, Settings};

/// The tenant's name.
pub(crate) const NAME: &str = "demo";

/// The built-in handler of the demo.
#[cfg(feature = "demo")]
pub(crate) const HANDLER: &str = "everything";

/// Reads the settings. A command becomes the backend of the tenant `demo`, beside those of the
/// file. Without a command, a file or tenants in the environment, the tenant gets the built-in
/// handler, if the program has it.
pub(crate) fn settings(
    config: Option<&Path>,
    command: &[OsString],
    environment: &Environment,
) -> Result<Reading, Problems> {
    if !command.is_empty() {
        let mut reading = Settings::examine(Some(hosting(command)?), config, environment);
        inherit_environment(&mut reading.settings);
        return Ok(reading);
    }
    let reading = Settings::examine(None, config, environment);
    let has_others = reading.settings.tenants.keys().any(|name| name != NAME);
    let has_folder = !reading.settings.node.tenants_dir.as_os_str().is_empty();
    if config.is_some() || has_others || has_folder {
        return Ok(reading);
    }
    Ok(Settings::examine(Some(built_in()?), None, environment))
}

#[cfg(feature = "demo")]
fn built_in() -> Result<serde_json::Value, Problems> {
    Ok(tenant("built-in", &json!({ "kind": "native", "name": HANDLER })))
}

#[cfg(not(feature = "demo"))]
fn built_in() -> Result<serde_json::Value, Problems> {
    Err(Problems::one(
        "there is no server to host, and this program was built without the feature `demo`; \
         write a command, as in `roundhouse serve -- COMMAND`, or tenants into a settings file, \
         and name it with `--config FILE`",
    ))
}

fn hosting(command: &[OsString]) -> Result<serde_json::Value, Problems> {
    let words: Option<Vec<&str>> = command.iter().map(|word| word.to_str()).collect();
    let words = words.ok_or_else(|| Problems::one("the command after `--` is not UTF-8"))?;
    let (command, args) = (words[0], &words[1..]);
    let mut settings =
        tenant("command", &json!({ "kind": "stdio", "command": command, "args": args }));
    // A developer at a terminal wants to see every call.
    settings["log"] = json!({ "access": "all" });
    Ok(settings)
}

fn tenant(backend: &str, settings: &serde_json::Value) -> serde_json::Value {
    json!({ "tenants": { NAME: { "auth": "open", "backends": { backend: settings } } } })
}

// A command on the command line runs with the environment that it would have without Roundhouse.
// A command in a settings file gets only the variables that the file configures.
fn inherit_environment(settings: &mut Settings) {
    let demo = settings.tenants.get_mut(NAME).and_then(|demo| demo.backends.get_mut("command"));
    if let Some(BackendSettings::Stdio(stdio)) = demo {
        stdio.program.explain.get_or_insert(true);
        for (name, value) in Environment::inherited() {
            stdio.program.env.entry(name).or_insert_with(|| secrets::literal(&value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Environment {
        Environment::of([])
    }

    #[cfg(not(feature = "demo"))]
    #[test]
    fn without_the_demo_a_missing_configuration_is_a_problem_that_names_the_remedies() {
        let problem = settings(None, &[], &none()).unwrap_err().to_string();
        assert!(problem.contains("serve -- COMMAND") && problem.contains("--config"), "{problem}");
    }

    #[cfg(feature = "demo")]
    #[test]
    fn without_a_configuration_the_built_in_demo_is_served() {
        let settings = settings(None, &[], &none()).unwrap().settings;
        let BackendSettings::Native(native) = &settings.tenants[NAME].backends["built-in"] else {
            panic!("not native")
        };
        assert_eq!(native.name, HANDLER);
    }

    #[test]
    fn a_command_is_hosted_with_its_arguments_and_the_environment() {
        let command = ["npx", "-y", "server", "--flag"].map(OsString::from);
        let settings = settings(None, &command, &none()).unwrap().settings;
        let BackendSettings::Stdio(stdio) = &settings.tenants[NAME].backends["command"] else {
            panic!("not stdio")
        };
        assert_eq!((stdio.program.command.as_str(), stdio.program.args.len()), ("npx", 3));
        assert!(stdio.program.env.contains_key("PATH"));
        assert_eq!(settings.log.access, telemetry::Access::All);
        assert_eq!(stdio.program.explain, Some(true), "its user sees why it does not start");
    }

    #[test]
    fn a_command_may_be_hosted_without_a_line_for_each_call() {
        let key = "ROUNDHOUSE__LOG__ACCESS".to_owned();
        let environment = Environment::of([(key, "off".to_owned())]);
        let settings = settings(None, &[OsString::from("server")], &environment).unwrap().settings;
        assert_eq!(settings.log.access, telemetry::Access::Off);
    }

    #[cfg(feature = "demo")]
    #[test]
    fn the_environment_may_bound_the_demo_without_replacing_it() {
        let key = "ROUNDHOUSE__TENANTS__DEMO__LIMITS__SESSIONS_MAX";
        let environment = Environment::of([(key.to_owned(), "3".to_owned())]);
        let settings = settings(None, &[], &environment).unwrap().settings;
        let demo = &settings.tenants[NAME];
        assert_eq!(demo.tenant.limits.sessions_max, 3);
        assert_eq!(demo.tenant.auth, Some("open".into()));
    }

    #[test]
    fn a_node_with_tenants_in_the_environment_has_no_open_demo() {
        let key = "ROUNDHOUSE__TENANTS__ACME__AUTH";
        let environment = Environment::of([(key.to_owned(), "open".to_owned())]);
        let settings = settings(None, &[], &environment).unwrap().settings;
        assert_eq!(settings.tenants.keys().collect::<Vec<_>>(), ["acme"]);
    }
}
