//! Reads the settings: the file first, the environment over it, then checks every key.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

use config::builder::DefaultState;
use config::{Config, ConfigBuilder, ConfigError, File, FileFormat};
use serde::Deserialize;

use super::{Problems, Settings};
use crate::private_environment::{self, MARK, is_setting};

/// The `ROUNDHOUSE__SECTION__KEY` variables, which override the file.
#[derive(Clone, Debug, Default)]
pub struct Environment(Option<HashMap<String, String>>);

impl Environment {
    /// The environment of this process, with the settings that [`crate::private_environment`] has
    /// removed from it.
    pub fn of_process() -> Self {
        Self(private_environment::removed().map(|settings| settings.iter().cloned().collect()))
    }

    /// Exactly these variables.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(Some(variables.into_iter().collect()))
    }

    /// The variables that a command from the command line inherits.
    pub(crate) fn inherited() -> impl Iterator<Item = (String, String)> {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let is_own = |name: &str| is_setting(name) || name == MARK;
        std::env::vars_os().filter_map(text).filter(move |(name, _)| !is_own(name))
    }

    fn source(&self) -> config::Environment {
        config::Environment::with_prefix("ROUNDHOUSE")
            .prefix_separator("__")
            .separator("__")
            .source(self.0.clone())
    }
}

impl Settings {
    /// Reads the file, if any, with the environment over it.
    pub fn read(file: Option<&Path>, environment: &Environment) -> Result<Self, Problems> {
        Self::build(Config::builder(), file, environment)
    }

    /// The same, over values that the program itself sets.
    pub(crate) fn read_over(
        base: &serde_json::Value,
        file: Option<&Path>,
        environment: &Environment,
    ) -> Result<Self, Problems> {
        let base = Config::try_from(base).map_err(one)?;
        Self::build(Config::builder().add_source(base), file, environment)
    }

    fn build(
        mut config: ConfigBuilder<DefaultState>,
        file: Option<&Path>,
        environment: &Environment,
    ) -> Result<Self, Problems> {
        if let Some(file) = file {
            config = config.add_source(File::from(file).format(FileFormat::Toml));
        }
        let mut root = config.add_source(environment.source()).build().map_err(one)?.cache;
        let mut problems = Problems::default();
        Self::shape().fit("", &mut root, &mut problems);
        problems.or(())?;
        Self::deserialize(root).map_err(one)
    }
}

fn one(error: ConfigError) -> Problems {
    Problems::one(error.to_string().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::BackendSettings;

    fn read(toml: &str, variables: &[(&str, &str)]) -> Result<Settings, Problems> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("roundhouse.toml");
        std::fs::write(&file, toml).unwrap();
        let variables = variables.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        Settings::read(Some(&file), &Environment::of(variables))
    }

    fn refusal(toml: &str, variables: &[(&str, &str)]) -> String {
        read(toml, variables).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let refusal = refusal("[admin]\nlisten = ''\nlisen = ''", &[]);
        assert!(refusal.contains("unknown key `admin.lisen` in "), "{refusal}");
        assert!(refusal.contains("did you mean `admin.listen`?"), "{refusal}");
    }

    #[test]
    fn a_key_that_has_another_name_now_is_refused_with_that_name() {
        let refusal = refusal("[cluster]\nwhereabouts_max = 3", &[]);
        assert!(refusal.contains("`cluster.whereabouts_max` in "), "{refusal}");
        assert!(refusal.contains("is now called `cluster.location_cache_max`"), "{refusal}");
        let keys = Settings::keys();
        for (old, new) in crate::settings::problems::RENAMED {
            assert!(keys.contains_key(*new) && !keys.contains_key(*old), "{old}, {new}");
        }
    }

    #[test]
    fn a_key_that_is_gone_is_refused_with_what_holds_instead() {
        let backend = "[tenants.acme.backends.files]\nkind = 'stdio'\ncommand = 'server'\n";
        let refusal = refusal(&format!("{backend}scope = 'session'"), &[]);
        assert!(refusal.contains("`tenants.acme.backends.files.scope` in "), "{refusal}");
        assert!(refusal.contains("is no longer a key: each session has"), "{refusal}");
    }

    #[test]
    fn a_key_of_another_section_is_found_there() {
        let refusal = refusal("[admin]\nsse_after_ms = 3", &[]);
        assert!(refusal.contains("did you mean `sessions.sse_after_ms`?"), "{refusal}");
    }

    #[test]
    fn an_unknown_key_that_resembles_none_gets_the_list_of_known_ones() {
        let refusal = refusal("[store]\ncolour = 'red'", &[]);
        assert!(refusal.contains("unknown key `store.colour`"), "{refusal}");
        assert!(refusal.contains("known here: `append_window_ms`, `batch_bytes_max`"), "{refusal}");
    }

    #[test]
    fn unknown_keys_are_found_at_any_depth_and_all_at_once() {
        let toml = "
            sesions = 3
            [tenants.acme]
            oauth = 'open'
            [tenants.acme.limits]
            session_max = 3
            [tenants.acme.backends.files]
            kind = 'stdio'
            comand = 'ls'
            [tenants.acme.backends.more]
            kind = 'stido'
            [tenants.acme.backends.most]";
        let refusal = refusal(toml, &[]);
        for wanted in [
            "did you mean `sessions`?",
            "did you mean `tenants.acme.auth`?",
            "did you mean `tenants.acme.limits.sessions_max`?",
            "did you mean `tenants.acme.backends.files.command`?",
            "did you mean \"stdio\"?",
            "`tenants.acme.backends.most` needs a `kind`",
        ] {
            assert!(refusal.contains(wanted), "no {wanted} in\n{refusal}");
        }
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let toml = "[sessions]\nidle_secs = 10\nkeepalive_secs = 7";
        let variables = [
            ("ROUNDHOUSE__SESSIONS__IDLE_SECS", "20"),
            ("ROUNDHOUSE__TENANTS__ACME__AUTH", "open"),
            ("ROUNDHOUSE__TENANTS__ACME__ALLOWED_ORIGINS", "https://a.example, https://b.example"),
            ("ROUNDHOUSE__TENANTS__ACME__BACKENDS__FILES__KIND", "stdio"),
            ("ROUNDHOUSE__TENANTS__ACME__BACKENDS__FILES__COMMAND", "ls"),
            ("ROUNDHOUSE__TENANTS__ACME__BACKENDS__FILES__ENV__API_KEY", "12"),
            ("ROUNDHOUSE_GUARD", "not a setting"),
        ];
        let settings = read(toml, &variables).unwrap();
        assert_eq!(settings.sessions.session.idle_secs, 20);
        assert_eq!(settings.sessions.session.keepalive_secs, 7);
        let acme = &settings.tenants["acme"];
        assert_eq!(acme.tenant.allowed_origins, ["https://a.example", "https://b.example"]);
        let BackendSettings::Stdio(files) = &acme.backends["files"] else { panic!("not stdio") };
        assert_eq!(files.program.env["API_KEY"], "12");
    }

    #[test]
    fn an_unknown_key_in_the_environment_is_refused_too() {
        let refusal = refusal("", &[("ROUNDHOUSE__STORE__URI", "memory:")]);
        assert!(refusal.contains("`store.uri` in the environment; did you mean `store.url`?"));
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_by_its_path_and_not_repeated() {
        let toml = "[sessions]\nidle_secs = 'hunter2'\n[store]\nurl = 7";
        let refusal = refusal(toml, &[]);
        assert!(refusal.contains("`sessions.idle_secs` in "), "{refusal}");
        assert!(refusal.contains("must be a whole number"), "{refusal}");
        assert!(refusal.contains("must be text"), "{refusal}");
        assert!(!refusal.contains("hunter2"), "{refusal}");
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused_by_its_path() {
        let refusal = refusal("[sessions]\nidle_secs = -1", &[]);
        assert!(refusal.contains("sessions"), "{refusal}");
    }

    #[test]
    fn a_file_that_is_not_there_or_not_toml_is_named() {
        let missing = Settings::read(Some(Path::new("nowhere.toml")), &Environment::of([]));
        assert!(missing.unwrap_err().to_string().contains("nowhere.toml"));
        assert!(refusal("[front", &[]).contains("roundhouse.toml"));
    }
}
