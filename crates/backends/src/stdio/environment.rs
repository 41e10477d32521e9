//! The variables that a child gets without being asked for: which of the node's own, and those of
//! its private home directory. Decides only; it never reads the environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The variables that a child inherits with any value: the places of programs, the user's files
/// and temporary files, the locale and the time zone.
pub const INHERITED: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];

/// The variables that a child inherits unless their value may hold credentials: what `npx`, `uvx`
/// and `pip` need to download a server through a proxy, from a private registry, or behind a
/// private certificate authority.
///
/// No name of a token, a password, a key or a file that may hold one is in this list.
pub const INHERITED_FOR_DOWNLOADS: &[&str] = &[
    // Certificates.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "npm_config_cafile",
    "NPM_CONFIG_CAFILE",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    // Proxies.
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "NODE_USE_ENV_PROXY",
    "npm_config_proxy",
    "NPM_CONFIG_PROXY",
    "npm_config_https_proxy",
    "NPM_CONFIG_HTTPS_PROXY",
    "npm_config_noproxy",
    "NPM_CONFIG_NOPROXY",
    "PIP_PROXY",
    // Registries.
    "npm_config_registry",
    "NPM_CONFIG_REGISTRY",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_TRUSTED_HOST",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX_STRATEGY",
    "UV_INSECURE_HOST",
    "UV_NO_INDEX",
    "UV_OFFLINE",
    "UV_PYTHON_DOWNLOADS",
    "UV_PYTHON_INSTALL_MIRROR",
    "UV_PYTHON_PREFERENCE",
];

/// The variables of the node's environment that a child inherits without being named in a setting.
pub(super) fn inherited(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let is_inherited = |(name, value): &(OsString, OsString)| {
        is_in(name, INHERITED) || (is_in(name, INHERITED_FOR_DOWNLOADS) && !may_hold_secret(value))
    };
    environment.into_iter().filter(is_inherited).collect()
}

/// The names of those variables that a child does not inherit because their value may hold
/// credentials.
pub fn withheld<'a>(
    environment: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
) -> Vec<&'static str> {
    let withheld = environment.into_iter().filter(|(_, value)| may_hold_secret(value));
    let listed = |name: &OsStr| INHERITED_FOR_DOWNLOADS.iter().find(|listed| name == **listed);
    withheld.filter_map(|(name, _)| listed(name).copied()).collect()
}

/// Is this a variable that programs find a user, a path or the locale by?
pub(super) fn is_plain(name: &OsStr) -> bool {
    is_in(name, INHERITED)
}

fn is_in(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|listed| name == *listed)
}

/// Does this value possibly hold credentials? A URL has them before an `@`, or in its query. A
/// value with one of these characters elsewhere is withheld as well.
fn may_hold_secret(value: &OsStr) -> bool {
    value.as_bytes().iter().any(|byte| matches!(byte, b'@' | b'?'))
}

/// The variables of a private home directory: itself, and the caches in it of programs that
/// download servers.
pub(super) fn of_home(home: &Path) -> [(&'static str, PathBuf); 5] {
    [
        ("HOME", home.to_owned()),
        ("XDG_CACHE_HOME", home.join(".cache")),
        ("npm_config_cache", home.join(".npm")),
        ("PIP_CACHE_DIR", home.join(".cache/pip")),
        ("UV_CACHE_DIR", home.join(".cache/uv")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, value: &str, is_passed: bool) {
        let (name, value) = (OsString::from(name), OsString::from(value));
        let passed = inherited([(name.clone(), value.clone())]);
        assert_eq!(!passed.is_empty(), is_passed, "{name:?}={value:?}");
    }

    #[test]
    fn certificates_proxies_and_registries_are_inherited() {
        check("SSL_CERT_FILE", "/etc/ssl/corp.pem", true);
        check("https_proxy", "http://proxy.example:3128", true);
        check("NO_PROXY", "localhost,.example.com", true);
        check("npm_config_registry", "https://npm.example/", true);
        check("UV_INDEX", "corp=https://pypi.example/simple", true);
    }

    #[test]
    fn what_may_be_a_credential_is_not_inherited() {
        check("HTTPS_PROXY", "http://user:hunter2@proxy.example:3128", false);
        check("http_proxy", "user:hunter2@proxy.example", false);
        check("PIP_INDEX_URL", "https://pypi.example/simple?token=hunter2", false);
        check("UV_INDEX", "a=https://pypi.example/ b=https://t@other.example/", false);
        for name in ["NODE_AUTH_TOKEN", "UV_INDEX_CORP_PASSWORD", "npm_config__auth", "API_KEY"] {
            check(name, "hunter2", false);
        }
        for name in INHERITED_FOR_DOWNLOADS {
            let name = name.to_lowercase();
            let words = ["auth", "token", "password", "secret", "key", "userconfig", "netrc"];
            assert!(!words.iter().any(|word| name.contains(word)), "{name}");
        }
    }

    #[test]
    fn a_variable_that_is_withheld_is_named() {
        let variables = [("HTTP_PROXY", "http://a:b@c"), ("NO_PROXY", "d"), ("X", "e@f")];
        let variables = variables.map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        assert_eq!(withheld(variables), ["HTTP_PROXY"]);
    }
}
