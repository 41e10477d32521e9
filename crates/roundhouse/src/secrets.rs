//! Secrets to which the settings of a tenant refer: `${env:NAME}` and `${file:NAME}`.
//!
//! A tenant gets only its own: a file of its directory below `node.secrets_dir`, or a variable whose
//! name has the tenant's name in it. No error repeats a part of a secret.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::files;
use crate::private_environment::{self, SECRET_PREFIX, is_secret};
use crate::settings::Settings;

/// Largest secret, in bytes; a larger one is refused.
const SECRET_BYTES_MAX: usize = 64 << 10;

/// Most bytes of the variables of one backend that have secrets in them; more are refused. Linux
/// accepts about twice as much, at most 128 KiB of it in one variable.
const BACKEND_BYTES_MAX: usize = 1 << 20;

/// Longest variable with a secret in it, in bytes; Linux starts no program with a longer one.
const VARIABLE_BYTES_MAX: usize = 127 << 10;

/// The beginning of a reference to a variable.
const ENV: &str = "${env:";

/// The beginning of a reference to a file.
const FILE: &str = "${file:";

/// Longest name of a secret, in characters: that of a file.
const NAME_LENGTH_MAX: usize = 255;

/// The secrets that the tenants of these settings can refer to.
pub(crate) struct Secrets {
    /// `node.secrets_dir`.
    folder: PathBuf,
    variables: BTreeMap<String, String>,
    /// The tenants by the part of a variable's name that stands for them.
    owners: BTreeMap<String, Vec<String>>,
}

/// A part of a value.
#[derive(Debug, PartialEq)]
enum Part<'a> {
    Text(&'a str),
    Env(&'a str),
    File(&'a str),
}

impl Secrets {
    /// Those of this process.
    pub(crate) fn of(settings: &Settings) -> Self {
        let left = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let removed = private_environment::removed().unwrap_or_default().iter().cloned();
        Self::with(settings, left.chain(removed))
    }

    /// Those of exactly these variables.
    fn with(settings: &Settings, variables: impl Iterator<Item = (String, String)>) -> Self {
        let variables = variables.filter(|(name, _)| is_secret(name)).collect();
        let mut owners = BTreeMap::<String, Vec<String>>::new();
        for tenant in settings.tenants.keys() {
            owners.entry(owner_part(tenant)).or_default().push(tenant.clone());
        }
        Self { folder: settings.node.secrets_dir.clone(), variables, owners }
    }

    /// Replaces the references in the table of texts at the key `at`, such as the variables of a backend.
    /// Returns everything that is wrong with them.
    pub(crate) fn resolve(
        &self,
        tenant: &str,
        at: &str,
        variables: &mut BTreeMap<String, String>,
    ) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        let mut left = BACKEND_BYTES_MAX;
        for (name, value) in variables {
            let key = format!("{at}.{name}");
            match self.value(tenant, &key, value) {
                Ok(None) => {}
                Ok(Some(resolved)) if resolved.len() > left => {
                    problems.push(format!(
                        "`{key}` and the other variables with secrets are longer than 1 MiB together"
                    ));
                    break;
                }
                Ok(Some(resolved)) => {
                    left -= resolved.len();
                    *value = resolved;
                }
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// The value with its secrets; `None` if it stays as it is. An error names the key, and no part of a
    /// secret.
    pub(crate) fn value(
        &self,
        tenant: &str,
        key: &str,
        written: &str,
    ) -> Result<Option<String>, String> {
        if !written.contains("${") {
            return Ok(None);
        }
        let mut value = String::new();
        for part in parts(written).map_err(|why| format!("`{key}` {why}"))? {
            match part {
                Part::Text(text) => value += text,
                Part::Env(name) => value += self.variable(tenant, key, name)?,
                Part::File(name) => value += &self.file(tenant, key, name)?,
            }
            if value.len() > VARIABLE_BYTES_MAX {
                return Err(format!("`{key}` is longer than 127 KiB with its secrets"));
            }
        }
        Ok(Some(value))
    }

    fn variable(&self, tenant: &str, key: &str, name: &str) -> Result<&str, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // The last two underscores of the variable then end the part of the tenant. So the variable
        // of one tenant is never that of another.
        if !name.chars().all(is_name) || name.starts_with('_') || name.contains("__") {
            return Err(format!(
                "`{key}` has a reference `${{env:…}}` with a name of other characters than a-z, A-Z, \
                 0-9 and single `_`, or that begins with `_`; rename the secret"
            ));
        }
        let part = owner_part(tenant);
        if let Some(other) =
            self.owners.get(&part).and_then(|all| all.iter().find(|o| *o != tenant))
        {
            return Err(format!(
                "`{key}` refers to a variable, and the variables of tenants `{tenant}` and `{other}` \
                 have the same names; rename one of the tenants, or use a file, as in \
                 `${{file:{name}}}`"
            ));
        }
        let variable = format!("{SECRET_PREFIX}{part}__{name}");
        match self.variables.get(&variable) {
            Some(value) if value.len() > SECRET_BYTES_MAX => {
                Err(format!("`{key}`: the variable {variable} is longer than 64 KiB"))
            }
            Some(value) => Ok(value),
            None => Err(format!(
                "`{key}` needs the variable {variable}, which the node's environment does not have; \
                 set it and restart the node"
            )),
        }
    }

    fn file(&self, tenant: &str, key: &str, name: &str) -> Result<String, String> {
        if !is_file_name(name) {
            return Err(format!(
                "`{key}` has a reference `${{file:…}}` with a name of other characters than a-z, A-Z, \
                 0-9, `-`, `_` and `.`, or that begins with a dot; a secret is a file in the tenant's \
                 own directory, without a path"
            ));
        }
        if self.folder.as_os_str().is_empty() {
            return Err(format!(
                "`{key}` refers to the file `{name}`, and `node.secrets_dir` is not set; set it to a \
                 directory with a directory `{tenant}`"
            ));
        }
        let path = self.folder.join(tenant).join(name);
        let wrong = |why: &dyn std::fmt::Display| format!("`{key}`: {}: {why}", path.display());
        let real = own_file(&self.folder, tenant, name).map_err(|error| wrong(&error))?;
        let Some(real) = real else {
            return Err(wrong(&"is a link that leads out of the tenant's directory of secrets"));
        };
        // Opening a pipe would wait for a process that writes into it.
        if !real.is_file() {
            return Err(wrong(&"is not a file"));
        }
        let text = files::secret_text(key, &real)?;
        let text = text.trim_end_matches(['\r', '\n']);
        if text.len() > SECRET_BYTES_MAX {
            return Err(wrong(&"is longer than 64 KiB"));
        }
        if text.contains('\0') {
            return Err(wrong(&"has a zero byte, which no variable can have"));
        }
        Ok(text.to_owned())
    }
}

/// The files to which these variables of a tenant refer.
pub(crate) fn files_of<'a>(
    folder: &Path,
    tenant: &str,
    variables: impl Iterator<Item = &'a String>,
) -> Vec<PathBuf> {
    let folder = folder.join(tenant);
    let names = variables.flat_map(|value| {
        parts(value).unwrap_or_default().into_iter().filter_map(|part| match part {
            Part::File(name) if is_file_name(name) => Some(name),
            _ => None,
        })
    });
    names.map(|name| folder.join(name)).collect()
}

/// A value that stands for exactly this text.
pub(crate) fn literal(text: &str) -> String {
    text.replace("${", "$${")
}

/// Whether the node replaces a part of this value.
pub(crate) fn has_reference(value: &str) -> bool {
    let is_reference = |part: &Part<'_>| !matches!(part, Part::Text(_));
    parts(value).is_ok_and(|parts| parts.iter().any(is_reference))
}

/// The parts of a value. `$${` stands for `${`; any other part such as `${NAME}` is text.
fn parts(value: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = value;
    while let Some(at) = rest.find('$') {
        parts.push(Part::Text(&rest[..at]));
        rest = &rest[at..];
        if rest.starts_with("$${") {
            parts.push(Part::Text("${"));
            rest = &rest["$${".len()..];
            continue;
        }
        let Some(start) = [ENV, FILE].into_iter().find(|start| rest.starts_with(start)) else {
            parts.push(Part::Text("$"));
            rest = &rest[1..];
            continue;
        };
        let Some((name, behind)) = rest[start.len()..].split_once('}') else {
            return Err(format!(
                "has `{start}` without a closing brace; write `${start}` for the text itself"
            ));
        };
        if name.is_empty() || name.chars().count() > NAME_LENGTH_MAX {
            return Err(format!("has a reference `{start}…}}` with an empty or too long name"));
        }
        parts.push(if start == ENV { Part::Env(name) } else { Part::File(name) });
        rest = behind;
    }
    parts.push(Part::Text(rest));
    parts.retain(|part| *part != Part::Text(""));
    Ok(parts)
}

/// The part of a variable's name that stands for a tenant.
fn owner_part(tenant: &str) -> String {
    tenant.to_ascii_uppercase().replace('-', "_")
}

fn is_file_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars().all(is_part) && !name.starts_with('.')
}

/// Where the file of a secret really is; `None` if a link leads out of the tenant's directory.
/// Kubernetes keeps the files behind the link `..data`: in the directory of the tenant, or beside it
/// if one volume has the directories of several tenants.
fn own_file(folder: &Path, tenant: &str, name: &str) -> std::io::Result<Option<PathBuf>> {
    let all = fs::canonicalize(folder)?;
    let own = fs::canonicalize(folder.join(tenant))?;
    let real = fs::canonicalize(folder.join(tenant).join(name))?;
    let is_own = own != all && own.starts_with(&all) && own.ends_with(tenant);
    Ok((is_own && real.starts_with(&own)).then_some(real))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::settings::TenantSettings;

    fn secrets(folder: &Path, tenants: &[&str], variables: &[(&str, &str)]) -> Secrets {
        let mut settings = Settings::default();
        settings.node.secrets_dir = folder.to_owned();
        for tenant in tenants {
            settings.tenants.insert((*tenant).to_owned(), TenantSettings::default());
        }
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Secrets::with(&settings, variables)
    }

    fn resolve(secrets: &Secrets, tenant: &str, value: &str) -> Result<String, String> {
        let mut env = BTreeMap::from([("KEY".to_owned(), value.to_owned())]);
        let at = format!("tenants.{tenant}.backends.main.env");
        secrets.resolve(tenant, &at, &mut env).map_err(|all| all.join("\n"))?;
        Ok(env.remove("KEY").unwrap_or_default())
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o400)).unwrap();
    }

    #[test]
    fn references_are_replaced_and_everything_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("a/token"), "hunter2\n");
        let secrets = secrets(dir.path(), &["a"], &[("ROUNDHOUSE_SECRET_A__USER", "ada")]);
        for (value, expected) in [
            ("${env:USER}:${file:token}@host", "ada:hunter2@host"),
            ("plain $5 ${NAME} ${input:x}", "plain $5 ${NAME} ${input:x}"),
            ("$${env:USER} $$${file:token}", "${env:USER} $${file:token}"),
            ("", ""),
        ] {
            assert_eq!(resolve(&secrets, "a", value).as_deref(), Ok(expected));
            assert_eq!(resolve(&secrets, "a", &literal(value)).as_deref(), Ok(value));
        }
        assert!(has_reference("x${file:a}") && !has_reference("$${file:a} ${input:x}"));
    }

    #[test]
    fn a_reference_that_cannot_be_read_names_its_key_and_not_its_value() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("a/empty"), "");
        write(&dir.path().join("a/large"), &"x".repeat(SECRET_BYTES_MAX + 1));
        write(&dir.path().join("a/zero"), "hunter2\0");
        write(&dir.path().join("a/open"), "hunter2");
        let open = dir.path().join("a/open");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
        fs::create_dir(dir.path().join("a/folder")).unwrap();
        let secrets = secrets(dir.path(), &["a"], &[]);
        for (value, why) in [
            ("hunter2${env:X", "has `${env:` without a closing brace; write `$${env:`"),
            ("hunter2${file:}", "empty or too long name"),
            ("${env:X}", "needs the variable ROUNDHOUSE_SECRET_A__X, which"),
            ("${file:nowhere}", "a/nowhere: No such file"),
            ("${file:empty}", "the file is empty"),
            ("${file:large}", "is longer than 64 KiB"),
            ("${file:zero}", "has a zero byte"),
            ("${file:open}", "chmod it to 600"),
            ("${file:folder}", "is not a file"),
        ] {
            let refusal = resolve(&secrets, "a", value).unwrap_err();
            assert!(refusal.starts_with("`tenants.a.backends.main.env.KEY`"), "{refusal}");
            assert!(refusal.contains(why) && !refusal.contains("hunter2"), "{value}: {refusal}");
        }
        let unset = self::secrets(Path::new(""), &["a"], &[]);
        let refusal = resolve(&unset, "a", "${file:x}").unwrap_err();
        assert!(refusal.contains("`node.secrets_dir` is not set"), "{refusal}");
    }

    #[test]
    fn a_tenant_gets_no_file_of_another_tenant() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        write(&path("outside"), "hunter2");
        write(&path("secrets/b/token"), "hunter2");
        write(&path("secrets/a/own"), "mine");
        symlink("../b/token", path("secrets/a/link")).unwrap();
        symlink(path("outside"), path("secrets/a/absolute")).unwrap();
        symlink("../b", path("secrets/a/folder")).unwrap();
        symlink("b", path("secrets/c")).unwrap();
        symlink(".", path("secrets/d")).unwrap();
        symlink("../..", path("secrets/a/up")).unwrap();
        let secrets = secrets(&path("secrets"), &["a", "b", "c", "d"], &[]);
        assert_eq!(resolve(&secrets, "a", "${file:own}").as_deref(), Ok("mine"));
        for (tenant, name) in [
            ("a", "../b/token"),
            ("a", "/secrets/b/token"),
            ("a", ".."),
            ("a", "link"),
            ("a", "absolute"),
            ("a", "folder"),
            ("a", "folder/token"),
            ("a", "up"),
            ("c", "token"),
            ("d", "b"),
        ] {
            let refusal = resolve(&secrets, tenant, &format!("${{file:{name}}}")).unwrap_err();
            assert!(!refusal.contains("hunter2"), "{tenant} {name}: {refusal}");
        }
    }

    #[test]
    fn a_volume_of_kubernetes_may_hold_the_secrets_of_one_tenant_or_of_several() {
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("one");
        write(&one.join("a/..2026/token"), "first");
        symlink("..2026", one.join("a/..data")).unwrap();
        symlink("..data/token", one.join("a/token")).unwrap();
        assert_eq!(resolve(&secrets(&one, &["a"], &[]), "a", "${file:token}").unwrap(), "first");
        let several = dir.path().join("several");
        write(&several.join("..2026/a/token"), "second");
        symlink("..2026", several.join("..data")).unwrap();
        symlink("..data/a", several.join("a")).unwrap();
        let value = resolve(&secrets(&several, &["a"], &[]), "a", "${file:token}");
        assert_eq!(value.unwrap(), "second");
    }

    #[test]
    fn a_tenant_gets_no_variable_of_another_tenant() {
        let variables = [
            ("ROUNDHOUSE_SECRET_A__KEY", "of a"),
            ("ROUNDHOUSE_SECRET_A_B__KEY", "of a-b"),
            ("ROUNDHOUSE_SECRET_A__B__KEY", "of a--b"),
            ("ROUNDHOUSE_SECRET_A___KEY", "of a-"),
            ("ROUNDHOUSE__STORE__PASSWORD", "hunter2"),
            ("PATH", "hunter2"),
        ];
        let tenants = ["a", "a-b", "a--b", "a-"];
        let secrets = secrets(Path::new(""), &tenants, &variables);
        for tenant in tenants {
            let value = resolve(&secrets, tenant, "${env:KEY}");
            assert_eq!(value.unwrap(), format!("of {tenant}"));
        }
        for name in ["B__KEY", "_KEY", "_B__KEY", "../KEY", "PATH", "B_KEY", "A__KEY", "K=Y"] {
            let refusal = resolve(&secrets, "a", &format!("${{env:{name}}}")).unwrap_err();
            assert!(!refusal.contains("of a"), "{refusal}");
        }
        // These two would have the same variables.
        let twins = self::secrets(Path::new(""), &["a-b", "a_b"], &variables);
        for (tenant, other) in [("a-b", "`a_b`"), ("a_b", "`a-b`")] {
            let refusal = resolve(&twins, tenant, "${env:KEY}").unwrap_err();
            assert!(refusal.contains(other) && refusal.contains("`${file:KEY}`"), "{refusal}");
        }
    }

    #[test]
    fn the_files_of_a_tenant_are_those_in_its_directory() {
        let values = ["${file:a}x${file:b}", "${env:c}", "$${file:d}", "${file:../e}"];
        let values = values.map(str::to_owned);
        let files = files_of(Path::new("/s"), "t", values.iter());
        assert_eq!(files, [Path::new("/s/t/a"), Path::new("/s/t/b")]);
    }
}
