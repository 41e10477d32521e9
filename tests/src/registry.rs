//! Private registries of packages on loopback, whose certificates only an authority of the test vouches
//! for, and the variables that a user behind such a registry has.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::tools;

/// A name that no resolver knows: a client reaches it only through a proxy.
pub const BEHIND_PROXY: &str = "registry.invalid";

/// A registry of the test. It ends when this value is dropped.
#[derive(Debug)]
pub struct Registry {
    process: Child,
    folder: tempfile::TempDir,
    /// The port on loopback.
    pub port: u16,
    npm: String,
    simple: String,
}

impl Registry {
    /// A registry with one npm package and one wheel, both called `stand-in-server`.
    pub fn stand_in() -> Result<Self> {
        Self::start("registry.py", "/".into(), "/simple/".into())
    }

    /// A mirror of the registries that this machine's npm and pip use.
    pub fn mirror() -> Result<Self> {
        let at = |url: &str| {
            let (scheme, rest) = url.split_once("://").context("a registry without a scheme")?;
            ensure!(!rest.contains('@'), "the test cannot use a registry that needs a password");
            anyhow::Ok(format!("/at/{scheme}/{}/", rest.trim_end_matches('/')))
        };
        let remedy = "this test downloads packages: it needs npm and pip with a registry";
        let npm = at(&npm_registry().context(remedy)?)?;
        let simple = at(&pip_index().context(remedy)?)?;
        Self::start("mirror.py", npm, simple)
    }

    fn start(script: &str, npm: String, simple: String) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        certify(folder.path())?;
        let mut command = Command::new(tools::python("py1"));
        command.arg(tools::root().join("tests/servers").join(script));
        command.args(["cert", "key", "requests"].map(|name| folder.path().join(name)));
        // It ends with the test, whose end closes its input.
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut port = String::new();
        BufReader::new(process.stdout.take().context("no stdout")?).read_line(&mut port)?;
        Ok(Self { process, folder, port: port.trim().parse()?, npm, simple })
    }

    /// The certificate of its authority.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("ca")
    }

    /// The paths that clients of a mirror have requested.
    pub fn requests(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("requests"));
        text.unwrap_or_default().lines().map(Into::into).collect()
    }

    /// The variables of a user behind this registry.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = self.at(&format!("127.0.0.1:{}", self.port));
        variables.push(("NO_PROXY", "127.0.0.1".to_owned()));
        variables
    }

    /// The variables of a user who reaches this registry only through a proxy at this port.
    pub fn variables_behind(&self, proxy: u16) -> Vec<(&'static str, String)> {
        let mut variables = self.at(BEHIND_PROXY);
        variables.push(("HTTPS_PROXY", format!("http://127.0.0.1:{proxy}")));
        variables.push(("NO_PROXY", String::new()));
        variables
    }

    fn at(&self, host: &str) -> Vec<(&'static str, String)> {
        let authority = self.authority().display().to_string();
        let simple = format!("https://{host}{}", self.simple);
        vec![
            ("HOME", "/nonexistent".to_owned()),
            ("NODE_EXTRA_CA_CERTS", authority.clone()),
            ("SSL_CERT_FILE", authority.clone()),
            ("PIP_CERT", authority),
            ("npm_config_registry", format!("https://{host}{}", self.npm)),
            ("PIP_INDEX_URL", simple.clone()),
            ("UV_DEFAULT_INDEX", simple),
            ("UV_PYTHON_DOWNLOADS", "never".to_owned()),
        ]
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes an authority (`ca`), and a certificate that it signed (`cert`, `key`).
pub(crate) fn certify(dir: &Path) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    std::fs::write(dir.join("ca"), issuer.pem())?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".into(), BEHIND_PROXY.into()])?;
    // With the name of the authority, the certificate would be taken for a self-signed one.
    params.distinguished_name.push(DnType::CommonName, "registry");
    std::fs::write(dir.join("cert"), params.signed_by(&key, &issuer)?.pem())?;
    Ok(std::fs::write(dir.join("key"), key.serialize_pem())?)
}

/// The registry that this machine's npm uses.
fn npm_registry() -> Result<String> {
    output(Command::new("npm").args(["config", "get", "registry"]).env("PATH", tools::path()))
}

/// The index that this machine's pip uses. Of the environments of the tests only that of uv has a pip.
fn pip_index() -> Result<String> {
    let python = tools::python("uv");
    let told =
        output(Command::new(&python).args(["-m", "pip", "config", "get", "global.index-url"]));
    if let Ok(url) = std::env::var("PIP_INDEX_URL").or(told) {
        return Ok(url);
    }
    let script = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)";
    output(Command::new(&python).args(["-c", script]))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
