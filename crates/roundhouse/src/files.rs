//! Small files that settings name: passwords, certificates and keys.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use front::AdminToken;
use store::redis::Secret;

/// Largest file that is read; a larger one is not a password, certificate or key.
pub(crate) const BYTES_MAX: u64 = 1 << 20;

/// The permission bits for users other than the owner and the group.
const OTHERS: u32 = 0o007;

/// The text of the file that the setting `key` names. An error names the file and repeats nothing
/// of its content.
pub(crate) fn text(key: &str, path: &Path) -> Result<String, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("`{key}`: {}: {why}", path.display());
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    match read {
        Ok(length) if length as u64 > BYTES_MAX => Err(wrong(&"longer than 1 MiB")),
        Ok(0) => Err(wrong(&"the file is empty")),
        Ok(_) => Ok(text),
        Err(error) => Err(wrong(&error)),
    }
}

/// The same for a file that holds a secret: it is refused if other users may read or change it.
pub(crate) fn secret_text(key: &str, path: &Path) -> Result<String, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("`{key}`: {}: {why}", path.display());
    let mode = std::fs::metadata(path).map_err(|error| wrong(&error))?.permissions().mode();
    if mode & OTHERS != 0 {
        let why =
            format!("others may read or change it (mode {:o}); chmod it to 600", mode & 0o777);
        return Err(wrong(&why));
    }
    text(key, path)
}

/// A warning if other users may read the key of a certificate, or change it. Such a file is not refused,
/// since tools that issue certificates may write it so. The group may read it, as that of any secret.
pub(crate) fn warning_of_open_key(key: &str, path: &Path) -> Option<String> {
    // A file that cannot be read is a problem that is reported elsewhere.
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & OTHERS != 0).then(|| {
        format!(
            "`{key}`: {}: others may read or change the key (mode {:o}); chmod it to 600, or to 640 \
             with the group of the node's user",
            path.display(),
            mode & 0o777
        )
    })
}

/// The token in the file that the setting `key` names, which operators send.
pub(crate) fn token(key: &str, path: &Path) -> Result<AdminToken, String> {
    let text = secret_text(key, path)?;
    AdminToken::new(text.trim_end_matches(['\r', '\n'])).ok_or_else(|| {
        let path = path.display();
        format!(
            "`{key}`: {path}: holds no token; write one line of visible ASCII characters into it"
        )
    })
}

/// A secret that is the value of the setting `key`, or the content of the file that `{key}_file`
/// names. Both together are an error, since one would be ignored. A line feed at the end of the
/// file is removed.
pub(crate) fn secret(key: &str, written: &Secret, path: &Path) -> Result<Secret, String> {
    match (written.0.is_empty(), path.as_os_str().is_empty()) {
        (_, true) => Ok(written.clone()),
        (true, false) => {
            let text = secret_text(&format!("{key}_file"), path)?;
            Ok(text.trim_end_matches(['\r', '\n']).into())
        }
        (false, false) => Err(format!("`{key}` and `{key}_file` are both set; keep one")),
    }
}

/// Adds the variables of the file that the setting `key` names to `variables`: a line
/// `NAME=value` for each. Empty lines and lines that begin with `#` are ignored. A name that
/// `variables` has already is an error, since one value would be ignored.
pub(crate) fn add_variables(
    key: &str,
    path: &Path,
    variables: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    for (number, line) in (1..).zip(secret_text(key, path)?.lines()) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| format!("`{key}`: {}: line {number} {why}", path.display());
        let is_name = |name: &str| {
            let is_odd = |c: char| c.is_whitespace() || c.is_control();
            !name.is_empty() && !name.contains(is_odd)
        };
        let variable = line.split_once('=').filter(|(name, _)| is_name(name));
        let Some((name, value)) = variable.filter(|(_, value)| !value.contains('\0')) else {
            return Err(wrong(
                "is not NAME=value; write a variable a line, without blanks before \
                              the equals sign",
            ));
        };
        if variables.insert(name.into(), value.into()).is_some() {
            return Err(wrong(&format!("sets `{name}`, which is set already; keep one")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_written_or_in_a_file_and_never_both() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, " hunter 2\r\n").unwrap();
        let (none, path) = (Secret::default(), file.path());
        assert_eq!(secret("a", &none, path).unwrap(), " hunter 2".into());
        assert_eq!(secret("a", &"b".into(), Path::new("")).unwrap(), "b".into());
        let both = secret("a.b", &"hunter".into(), path).unwrap_err();
        assert!(both.contains("`a.b_file`") && !both.contains("hunter"), "{both}");
    }

    fn mode(file: &tempfile::NamedTempFile, mode: u32) {
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_file_that_others_may_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "hunter2").unwrap();
        mode(&file, 0o604);
        let refusal = secret("cluster.secret", &Secret::default(), file.path()).unwrap_err();
        assert!(refusal.starts_with("`cluster.secret_file`: "), "{refusal}");
        assert!(refusal.contains("chmod") && !refusal.contains("hunter2"), "{refusal}");
        mode(&file, 0o440);
        assert!(secret("cluster.secret", &Secret::default(), file.path()).is_ok());
    }

    #[test]
    fn a_key_that_others_may_read_is_a_warning_that_names_the_file_and_the_remedy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for open in [0o604, 0o602, 0o644] {
            mode(&file, open);
            let warning = warning_of_open_key("cluster.tls.key_file", file.path()).unwrap();
            assert!(warning.starts_with("`cluster.tls.key_file`: "), "{warning}");
            assert!(warning.contains(&format!("mode {open:o}")), "{warning}");
        }
        for closed in [0o600, 0o640, 0o400] {
            mode(&file, closed);
            assert_eq!(warning_of_open_key("cluster.tls.key_file", file.path()), None);
        }
        assert_eq!(warning_of_open_key("cluster.tls.key_file", Path::new("")), None);
    }

    #[test]
    fn a_file_of_variables_has_a_name_and_a_value_a_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let mut variables = BTreeMap::from([("LOG".to_owned(), "info".to_owned())]);
            add_variables("x.env_file", file.path(), &mut variables).map(|()| variables)
        };
        let variables = read("# for the server\n\nA=1\r\nB= b = c \nC=\n").unwrap();
        let pairs = [("A", "1"), ("B", " b = c "), ("C", ""), ("LOG", "info")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, BTreeMap::from(pairs));
        for (text, why) in [
            ("A=1\nhunter2", "line 2 is not NAME=value"),
            ("=hunter2", "line 1 is not NAME=value"),
            ("export A=hunter2", "line 1 is not NAME=value"),
            ("LOG=hunter2", "line 1 sets `LOG`, which is set already"),
            ("A=1\nA=hunter2", "line 2 sets `A`"),
            ("", "the file is empty"),
        ] {
            let refusal = read(text).unwrap_err();
            assert!(refusal.starts_with("`x.env_file`: ") && refusal.contains(why), "{refusal}");
            assert!(!refusal.contains("hunter2"), "{refusal}");
        }
        mode(&file, 0o644);
        assert!(read("A=1").unwrap_err().contains("chmod"));
    }

    #[test]
    fn a_token_file_that_others_may_read_or_that_holds_no_token_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str, mode: u32| {
            std::fs::write(&file, text).unwrap();
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            token("admin.token_file", file.path())
        };
        assert_eq!(read("hunter2\n", 0o600).unwrap(), AdminToken::new("hunter2").unwrap());
        assert!(read("hunter2", 0o640).is_ok());
        for mode in [0o644, 0o602] {
            let refusal = read("hunter2", mode).unwrap_err();
            assert!(
                refusal.contains("`admin.token_file`") && refusal.contains("chmod"),
                "{refusal}"
            );
            assert!(!refusal.contains("hunter2"), "{refusal}");
        }
        for text in ["", "\n", "hunter 2", "hunter2\nhunter3"] {
            let refusal = read(text, 0o600).unwrap_err();
            assert!(refusal.starts_with("`admin.token_file`: "), "{refusal}");
        }
        let refusal = token("admin.token_file", Path::new("nowhere")).unwrap_err();
        assert!(refusal.contains("nowhere"), "{refusal}");
    }

    #[test]
    fn a_file_that_is_missing_empty_or_huge_is_named_with_its_setting() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for length in [0, BYTES_MAX + 1] {
            file.as_file().set_len(length).unwrap();
            assert!(text("a.ca_file", file.path()).unwrap_err().starts_with("`a.ca_file`: "));
        }
        assert!(text("a.ca_file", Path::new("nowhere.pem")).unwrap_err().contains("nowhere.pem"));
    }
}
