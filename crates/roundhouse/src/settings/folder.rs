//! The tenants of a folder: the file `NAME.toml` holds what the settings file would have under
//! `[tenants.NAME]`, and nothing else.
//!
//! So the name of a file decides which tenant it can change. A team with write access to one file
//! can neither change another tenant nor the node.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use super::digests::content;
use super::finding::Place;
use super::shape::join;
use super::{Digests, Environment, Problems, tree};

/// The end of the names of files that are read.
const ENDING: &str = ".toml";

/// Most files of tenants; with more, none of them is read.
const FILES_MAX: usize = 10_000;

/// Largest file of a tenant, in bytes; a larger one is refused.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// Most bytes of all files of tenants together; the file that exceeds it is refused.
const FOLDER_BYTES_MAX: usize = 64 << 20;

/// A file of the folder.
pub(crate) struct TenantFile {
    /// The name of the tenant.
    tenant: String,
    pub(crate) path: PathBuf,
}

/// The files of tenants in this folder, in the order of their names. A name that begins with a dot is
/// left out: Kubernetes keeps the content of a volume behind the links `..data` and `..<time>`, and
/// editors hide their temporary files so. A name with another ending is left out as well.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<TenantFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let shown = name.to_string_lossy();
        let Some(tenant) = shown.strip_suffix(ENDING).filter(|_| !shown.starts_with('.')) else {
            continue;
        };
        files.push(TenantFile { tenant: tenant.to_owned(), path: folder.join(&name) });
        if files.len() > FILES_MAX {
            return Err(io::Error::other(format!(
                "it has more than {FILES_MAX} files of tenants; give some tenants another node"
            )));
        }
    }
    files.sort_by(|one, other| one.tenant.cmp(&other.tenant));
    Ok(files)
}

/// Adds the tenants of the folder that `node.tenants_dir` names: in the environment, or else in the
/// settings file, whose values are `root`. Returns the folder.
pub(super) fn add_named(
    file: Option<&Path>,
    environment: &Environment,
    root: &mut Map<String, Json>,
    problems: &mut Problems,
    digests: &mut Digests,
) -> Option<PathBuf> {
    let written = || root.get("node")?.get("tenants_dir")?.as_str();
    let (place, path) = match environment.find("node.tenants_dir") {
        Some((name, path)) => (Some(Place::Variable(name.to_owned())), path),
        None => (problems.places().of("node.tenants_dir").cloned(), written()?),
    };
    if path.is_empty() {
        return None;
    }
    let folder = beside(file, Path::new(path));
    match files(&folder) {
        Ok(files) => add(files, root, problems, digests),
        Err(error) => {
            let text = format!(
                "`node.tenants_dir`: the folder {} cannot be read: {error}; create it, or name \
                 another",
                folder.display()
            );
            problems.add_unreadable("tenants", place, text);
        }
    }
    Some(folder)
}

/// A path that settings name, as seen from the folder of the settings file.
pub(super) fn beside(file: Option<&Path>, path: &Path) -> PathBuf {
    let folder = file.and_then(Path::parent);
    folder.map_or_else(|| path.to_owned(), |folder| folder.join(path))
}

/// Adds the tenants of these files to those of `root`.
fn add(
    files: Vec<TenantFile>,
    root: &mut Map<String, Json>,
    problems: &mut Problems,
    digests: &mut Digests,
) {
    let tenants = root.entry("tenants").or_insert_with(|| Json::Object(Map::new()));
    // A value of another kind is reported when its shape is checked.
    let Json::Object(tenants) = tenants else { return };
    let mut left = FOLDER_BYTES_MAX;
    for file in files {
        let at = join("tenants", &file.tenant);
        let text = read(&file.path, left, digests);
        let first_line = Place::Line(file.path.clone(), 1);
        if tenants.contains_key(&file.tenant) {
            let other = match problems.places().of(&at) {
                Some(place) => format!("at {place}"),
                None => "on the command line".to_owned(),
            };
            let text =
                format!("`{at}` is given twice: in this file and {other}; remove one of them");
            problems.add_unreadable(&at, Some(first_line), text);
            continue;
        }
        let text = match text {
            Ok(text) => text,
            Err((line, why)) => {
                problems.add_unreadable(&at, Some(Place::Line(file.path, line)), why);
                continue;
            }
        };
        left -= text.len();
        problems.places().set(at.clone(), first_line.clone());
        let mut written = Map::new();
        tree::add_tenant_file(&file.path, &at, &text, &mut written, problems);
        if let Some(Json::Object(_)) = written.get("tenants") {
            let text = format!(
                "this file is the tenant `{}`, and has [tenants] in it; write its keys without \
                 `{at}.`, as in `auth = \"open\"` and [backends.main]",
                file.tenant
            );
            let place = problems.places().of(&join(&at, "tenants")).cloned();
            problems.add_unreadable(&at, place.or(Some(first_line)), text);
            continue;
        }
        tenants.insert(file.tenant, Json::Object(written));
    }
}

/// The text of the file of a tenant, or a line and what is wrong with it.
fn read(file: &Path, left: usize, digests: &mut Digests) -> Result<String, (usize, String)> {
    // Opening a pipe would wait for a process that writes into it.
    let content = match std::fs::metadata(file) {
        Ok(found) if !found.is_file() => {
            digests.add(file.to_owned(), None);
            return Err((1, "this is not a file; rename or remove it".to_owned()));
        }
        Ok(_) => content(file, FILE_BYTES_MAX),
        Err(error) => Err(error),
    };
    digests.add(file.to_owned(), content.as_ref().ok());
    let bytes = content.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => {
                "this is a link to a file that is not there; remove or repair it".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                format!("this user may not read the file ({error}); change its owner or its mode")
            }
            io::ErrorKind::FileTooLarge => {
                "the file is larger than 1 MiB, which no tenant's is".to_owned()
            }
            _ => format!("the file cannot be read: {error}"),
        };
        (1, why)
    })?;
    if bytes.len() > left {
        return Err((1, "the files of all tenants are larger than 64 MiB together".to_owned()));
    }
    tree::utf8(bytes).map_err(|line| (line, "is not UTF-8; save the file as UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::Settings;
    use crate::settings::BackendSettings;

    const GOOD: &str = "auth = 'open'\n[backends.main]\nkind = 'native'\nname = 'x'\n";

    /// A settings file, and the files of its folder.
    fn folder(main: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let tenants = dir.path().join("tenants.d");
        fs::create_dir(&tenants).unwrap();
        fs::write(dir.path().join("roundhouse.toml"), main).unwrap();
        files.iter().for_each(|(name, text)| fs::write(tenants.join(name), text).unwrap());
        dir
    }

    fn read_in(dir: &tempfile::TempDir, variables: &[(&str, &str)]) -> Result<Settings, Problems> {
        let variables = variables.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let environment = Environment::of(variables);
        Settings::read(Some(&dir.path().join("roundhouse.toml")), &environment)
    }

    fn refusals(main: &str, files: &[(&str, &str)]) -> Vec<String> {
        let dir = folder(main, files);
        let problems = read_in(&dir, &[]).unwrap_err();
        let start = format!("{}/", dir.path().display());
        problems.findings().iter().map(|f| f.to_string().replace(&start, "")).collect()
    }

    const NAMED: &str = "node.tenants_dir = 'tenants.d'\n";

    #[test]
    fn each_file_is_a_tenant_and_stands_beside_those_of_the_settings_file() {
        let main = format!("{NAMED}[tenants.main]\nauth = 'open'\n");
        let files = [
            ("acme.toml", GOOD),
            ("b-2.toml", "idle_stop_secs = 7\n"),
            (".hidden.toml", "x"),
            ("README.md", "x"),
            ("acme.toml~", "x"),
        ];
        let dir = folder(&main, &files);
        fs::create_dir(dir.path().join("tenants.d/folder")).unwrap();
        let variable = ("ROUNDHOUSE__TENANTS__B-2__IDLE_STOP_SECS", "9");
        let settings = read_in(&dir, &[variable]).unwrap();
        assert_eq!(settings.tenants.keys().collect::<Vec<_>>(), ["acme", "b-2", "main"]);
        let acme = &settings.tenants["acme"];
        assert_eq!(acme.tenant.auth, Some("open".into()));
        let BackendSettings::Native(main) = &acme.backends["main"] else { panic!("not native") };
        assert_eq!(main.name, "x");
        assert_eq!(settings.tenants["b-2"].care.idle_stop_secs, Some(9), "the environment wins");
        assert_eq!(settings.node.tenants_dir, dir.path().join("tenants.d"));
    }

    #[test]
    fn the_environment_may_name_the_folder() {
        let dir = folder("node.tenants_dir = 'nowhere'\n", &[("acme.toml", GOOD)]);
        let path = dir.path().join("tenants.d").display().to_string();
        for name in ["ROUNDHOUSE__NODE__TENANTS_DIR", "roundhouse__node__tenants_dir"] {
            let settings = read_in(&dir, &[(name, &path)]).unwrap();
            assert_eq!(settings.tenants.keys().collect::<Vec<_>>(), ["acme"]);
        }
    }

    #[test]
    fn each_problem_has_the_file_and_the_line_of_its_tenant() {
        let found = refusals(
            NAMED,
            &[
                ("a.toml", "auth = 'open'\nouth = 'x'\n"),
                ("b.toml", "auth = 'open'\n[backends"),
                ("c.toml", "[tenants.c]\nauth = 'open'\n"),
                ("d.toml", "auth: open\n"),
                ("e.toml", "idle_stop_secs = 'ten'\n"),
            ],
        );
        for (found, wanted) in found.iter().zip([
            "tenants.d/a.toml:2: unknown key `tenants.a.outh`; did you mean `tenants.a.auth`?",
            "tenants.d/b.toml:2: TOML syntax error",
            "tenants.d/c.toml:1: this file is the tenant `c`, and has [tenants] in it; write its",
            "tenants.d/d.toml:1: this is YAML, and settings are TOML",
            "tenants.d/e.toml:1: `tenants.e.idle_stop_secs` is \"ten\"; write a whole",
        ]) {
            assert!(found.starts_with(wanted), "{found}\nis not\n{wanted}");
        }
        assert_eq!(found.len(), 5, "{found:#?}");
    }

    #[test]
    fn a_tenant_that_is_given_twice_is_named_with_both_places() {
        let main = format!("{NAMED}\n[tenants.acme]\nauth = 'open'\n");
        let [found] = &refusals(&main, &[("acme.toml", GOOD)])[..] else { panic!("not one") };
        assert_eq!(
            found,
            "tenants.d/acme.toml:1: `tenants.acme` is given twice: in this file and at \
             roundhouse.toml:3; remove one of them"
        );
    }

    #[test]
    fn a_folder_that_is_not_there_and_files_that_cannot_be_read_are_named() {
        let [found] = &refusals("node.tenants_dir = 'nowhere'\n", &[])[..] else {
            panic!("not one")
        };
        assert!(found.starts_with("roundhouse.toml:1: `node.tenants_dir`: the folder"), "{found}");

        let dir = folder(NAMED, &[("large.toml", &"#".repeat((1 << 20) + 1))]);
        let tenants = dir.path().join("tenants.d");
        fs::create_dir(tenants.join("folder.toml")).unwrap();
        fs::write(tenants.join("latin.toml"), b"auth = 'open'\n# \xe4\n").unwrap();
        symlink("nowhere.toml", tenants.join("link.toml")).unwrap();
        let problems = read_in(&dir, &[]).unwrap_err().to_string();
        for wanted in [
            "folder.toml:1: this is not a file",
            "large.toml:1: the file is larger than 1 MiB",
            "latin.toml:2: is not UTF-8",
            "link.toml:1: this is a link to a file that is not there",
        ] {
            assert!(problems.contains(wanted), "no {wanted} in {problems}");
        }
    }

    #[test]
    fn the_files_of_a_volume_of_kubernetes_are_found_once() {
        let dir = folder(NAMED, &[]);
        let tenants = dir.path().join("tenants.d");
        fs::create_dir(tenants.join("..2026_01")).unwrap();
        fs::write(tenants.join("..2026_01/acme.toml"), GOOD).unwrap();
        symlink("..2026_01", tenants.join("..data")).unwrap();
        symlink("..data/acme.toml", tenants.join("acme.toml")).unwrap();
        let settings = read_in(&dir, &[]).unwrap();
        assert_eq!(settings.tenants.keys().collect::<Vec<_>>(), ["acme"]);
    }
}
