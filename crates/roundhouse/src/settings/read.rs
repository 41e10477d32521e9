//! Reads the settings: the file first, the environment over it, then checks every key.
//!
//! A wrong value is reported and left out, and reading goes on. So one reading finds everything.

use std::path::Path;

use serde::Deserialize as _;
use serde_json::{Map, Value as Json};

use super::shape::join;
use super::{
    BackendSettings, Digests, Environment, Problems, Settings, addresses, folder, tree, unfit,
};

/// Settings that were read, with default values in place of wrong ones, and what is wrong.
pub(crate) struct Reading {
    pub(crate) settings: Settings,
    pub(crate) problems: Problems,
    /// The contents of the files that were read.
    pub(crate) digests: Digests,
}

impl Settings {
    /// Reads the file, if any, with the environment over it.
    pub fn read(file: Option<&Path>, environment: &Environment) -> Result<Self, Problems> {
        let Reading { settings, problems, .. } = Self::examine(None, file, environment);
        problems.or(settings)
    }

    /// Reads the file and the environment over values that the program itself sets.
    pub(crate) fn examine(
        base: Option<Json>,
        file: Option<&Path>,
        environment: &Environment,
    ) -> Reading {
        let mut digests = Digests::default();
        let written = file.map(|file| (file, tree::read_into(file, &mut digests)));
        Self::examine_written(base, written, environment, digests)
    }

    /// Reads the text that a file is about to have.
    pub(crate) fn examine_text(file: &Path, text: &str, environment: &Environment) -> Reading {
        Self::examine_written(
            None,
            Some((file, Ok(text.to_owned()))),
            environment,
            Digests::default(),
        )
    }

    fn examine_written(
        base: Option<Json>,
        written: Option<(&Path, Result<String, String>)>,
        environment: &Environment,
        mut digests: Digests,
    ) -> Reading {
        let mut problems = Problems::default();
        let mut root = match base {
            Some(Json::Object(base)) => base,
            _ => Map::new(),
        };
        let file = written.as_ref().map(|(file, _)| *file);
        if let Some((file, text)) = written {
            let mut written = Map::new();
            tree::add_file(file, text, &mut written, &mut problems);
            merge(&mut root, written);
        }
        let folder = folder::add_named(file, environment, &mut root, &mut problems, &mut digests);
        environment.add_to(&mut root, &mut problems);
        let mut root = Json::Object(root);
        Self::shape().fit("", &mut root, &mut problems);
        resolve_listeners(&mut root, &mut problems);
        require_programs(&mut root, &mut problems);
        let mut settings = deserialize(root, &mut problems);
        settings.node.tenants_dir = folder.unwrap_or_default();
        if !settings.node.secrets_dir.as_os_str().is_empty() {
            settings.node.secrets_dir = folder::beside(file, &settings.node.secrets_dir);
        }
        settings.node.pins_dir = folder::beside(file, &settings.node.pins_dir);
        problems.end_reading();
        Reading { settings, problems, digests }
    }
}

/// Puts `over` over `under`, table by table.
fn merge(under: &mut Map<String, Json>, over: Map<String, Json>) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Json::Object(under)), Json::Object(over)) => merge(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// Replaces host names of listeners by their addresses.
fn resolve_listeners(root: &mut Json, problems: &mut Problems) {
    for section in ["front", "admin"] {
        let Some(table) = root.get_mut(section).and_then(Json::as_object_mut) else { continue };
        let Some(Json::String(written)) = table.get("listen") else { continue };
        let address = match section {
            "front" => addresses::listen(written).map(|address| address.to_string()),
            _ => addresses::admin(written).map(|address| address.to_string()),
        };
        let key = format!("{section}.listen");
        match address {
            Ok(address) => {
                table.insert("listen".into(), address.into());
            }
            Err(why) => {
                let written = problems.shown(&key, &Json::String(written.clone()));
                table.remove("listen");
                problems.add_about(&key, format!("`{key}` is {written}, which {why}"));
            }
        }
    }
}

/// Reports backends without the key that says what they are, and fills it in.
fn require_programs(root: &mut Json, problems: &mut Problems) {
    let Some(tenants) = root.get_mut("tenants").and_then(Json::as_object_mut) else { return };
    for (tenant, written) in tenants {
        let Some(backends) = written.get_mut("backends").and_then(Json::as_object_mut) else {
            continue;
        };
        for (name, backend) in backends {
            let Some(backend) = backend.as_object_mut() else { continue };
            let kind = backend.get("kind").and_then(Json::as_str).unwrap_or_default();
            let Some((required, example)) = BackendSettings::required(kind) else { continue };
            if !backend.contains_key(required) {
                let at = join(&join(&join("tenants", tenant), "backends"), name);
                problems.add_consequence(
                    &join(&at, required),
                    format!("`{at}` has no `{required}`; write {example}"),
                );
                backend.insert(required.into(), Json::String(String::new()));
            }
        }
    }
}

/// The settings of this tree. Values that cannot be used are reported and left out.
fn deserialize(mut root: Json, problems: &mut Problems) -> Settings {
    // Nearly always this is all.
    if let Ok(settings) = Settings::deserialize(&root) {
        return settings;
    }
    for path in leaves(&root) {
        if let Some(why) = unfit::why(&root, &path) {
            problems.add_unfit(&path, &why);
            remove(&mut root, &path);
        }
    }
    Settings::deserialize(root).unwrap_or_else(|error| {
        problems.add(error.to_string());
        Settings::default()
    })
}

/// The paths of all values that are not tables.
fn leaves(root: &Json) -> Vec<Vec<String>> {
    let Json::Object(table) = root else { return vec![Vec::new()] };
    let under = table.iter().flat_map(|(key, value)| {
        leaves(value).into_iter().map(move |mut path| {
            path.insert(0, key.clone());
            path
        })
    });
    under.collect()
}

fn remove(root: &mut Json, path: &[String]) {
    let Some((last, tables)) = path.split_last() else { return };
    let table = tables.iter().try_fold(root, |table, key| table.get_mut(key));
    if let Some(Json::Object(table)) = table {
        table.remove(last);
    }
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
        assert!(refusal.contains("unknown key `admin.lisen`;"), "{refusal}");
        assert!(refusal.contains("did you mean `admin.listen`?"), "{refusal}");
    }

    #[test]
    fn a_key_that_has_another_name_now_is_refused_with_that_name() {
        let refusal = refusal("[cluster]\nwhereabouts_max = 3", &[]);
        assert!(
            refusal
                .contains("`cluster.whereabouts_max` is now called `cluster.location_cache_max`"),
            "{refusal}"
        );
        let keys = Settings::keys();
        for (old, new) in crate::settings::problems::RENAMED {
            assert!(keys.contains_key(*new) && !keys.contains_key(*old), "{old}, {new}");
        }
    }

    #[test]
    fn a_key_that_is_gone_is_refused_with_what_holds_instead() {
        let backend = "[tenants.acme.backends.files]\nkind = 'stdio'\ncommand = 'server'\n";
        let refusal = refusal(&format!("{backend}scope = 'session'"), &[]);
        let wanted = "`tenants.acme.backends.files.scope` is no longer a key: each session has";
        assert!(refusal.contains(wanted), "{refusal}");
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
            auht = 'open'
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
            "`tenants.acme.backends.most` has no `kind`",
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
            ("ROUNDHOUSE__TENANTS__ACME__BACKENDS__FILES__ENV__http_proxy", "http://p"),
            ("roundhouse__tenants__acme__backends__files__env__UV__x", "y"),
            ("ROUNDHOUSE_GUARD", "not a setting"),
        ];
        let settings = read(toml, &variables).unwrap();
        assert_eq!(settings.sessions.session.idle_secs, 20);
        assert_eq!(settings.sessions.session.keepalive_secs, 7);
        let acme = &settings.tenants["acme"];
        assert_eq!(acme.tenant.allowed_origins, ["https://a.example", "https://b.example"]);
        let BackendSettings::Stdio(files) = &acme.backends["files"] else { panic!("not stdio") };
        let variables = [("API_KEY", "12"), ("UV__x", "y"), ("http_proxy", "http://p")];
        let variables = variables.map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(*files.program.env, std::collections::BTreeMap::from(variables));
    }

    #[test]
    fn an_unknown_key_in_the_environment_is_refused_too() {
        let refusal = refusal("", &[("ROUNDHOUSE__STORE__URI", "memory:")]);
        let wanted = "ROUNDHOUSE__STORE__URI: unknown key `store.uri`; did you mean `store.url`?";
        assert_eq!(refusal, wanted);
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_by_its_path_and_a_secret_is_not_repeated() {
        let toml = "[sessions]\nidle_secs = 'ten'\n[store]\npassword = 9753";
        let variables = [("ROUNDHOUSE__SESSIONS__PING_SECS", "hunter2")];
        let refusal = refusal(toml, &variables);
        assert!(
            refusal.contains(":2: `sessions.idle_secs` is \"ten\"; write a whole"),
            "{refusal}"
        );
        assert!(refusal.contains(":4: `store.password` is a value that is not"), "{refusal}");
        assert!(
            refusal.contains("ROUNDHOUSE__SESSIONS__PING_SECS: `sessions.ping_secs`"),
            "{refusal}"
        );
        assert!(!refusal.contains("hunter2") && !refusal.contains("9753"), "{refusal}");
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused_by_its_path() {
        let refusal = refusal("[sessions]\nidle_secs = -1", &[]);
        assert!(refusal.contains(":2: `sessions.idle_secs` is -1; write"), "{refusal}");
    }

    // What can be read is read, so that planning finds the rest.
    #[test]
    fn a_wrong_value_leaves_its_default_and_everything_else_is_read() {
        let toml = "[front]\nlisten = 'x'\nworkers = 3\n[log]\nformat = 'xml'\nlines_burst = 7\n\
                    [tenants.a.backends.b]\nkind = 'stdio'\ncommand = 'ls'\nsandbox = 'odd'\n";
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("roundhouse.toml");
        std::fs::write(&file, toml).unwrap();
        let read = Settings::examine(None, Some(&file), &Environment::of([]));
        assert_eq!(read.problems.findings().len(), 3, "{}", read.problems);
        let (settings, defaults) = (read.settings, Settings::default());
        assert_eq!((settings.front.workers, settings.log.lines_burst), (3, 7));
        assert_eq!(settings.front.listen, defaults.front.listen);
        assert_eq!(settings.log.format, defaults.log.format);
        let BackendSettings::Stdio(b) = &settings.tenants["a"].backends["b"] else { panic!() };
        assert_eq!((b.program.command.as_str(), b.program.sandbox), ("ls", None));
    }

    #[test]
    fn the_name_of_a_servers_variable_keeps_its_case() {
        let variables = [
            ("ROUNDHOUSE__TENANTS__A__BACKENDS__B__KIND", "stdio"),
            ("ROUNDHOUSE__TENANTS__A__BACKENDS__B__COMMAND", "ls"),
            ("roundhouse__tenants__a__backends__b__env__http__proxy", "x"),
        ];
        let settings = read("", &variables).unwrap();
        let BackendSettings::Stdio(b) = &settings.tenants["a"].backends["b"] else { panic!() };
        assert_eq!(b.program.env["http__proxy"], "x");
    }

    #[test]
    fn a_size_may_have_a_unit_in_the_file_and_in_the_environment() {
        let variables = [("ROUNDHOUSE__NODE__SESSION_BYTES_MAX", "2G")];
        let settings = read("front.body_bytes_max = '8M'", &variables).unwrap();
        assert_eq!(
            (settings.front.body_bytes_max, settings.node.session_bytes_max),
            (8 << 20, 2 << 30)
        );
    }

    #[test]
    fn a_file_that_is_not_there_or_not_toml_is_named() {
        let missing = Settings::read(Some(Path::new("nowhere.toml")), &Environment::of([]));
        assert!(missing.unwrap_err().to_string().contains("nowhere.toml"));
        assert!(refusal("[front", &[]).contains("roundhouse.toml"));
    }
}
