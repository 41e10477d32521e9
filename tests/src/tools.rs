//! The paths of the programs: those of this build, and those that `tests/setup` installs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent")
}

/// Writes a shell script that its owner can run.
pub fn write_script(path: &Path, lines: &str) -> std::io::Result<()> {
    std::fs::write(path, format!("#!/bin/sh\n{lines}\n"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// One of the programs built in this workspace.
///
/// `ROUNDHOUSE_PROGRAMS` names the folder of the programs to test. Without it the programs are
/// built once, in the profile of the tests.
pub fn built(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| std::env::var_os("ROUNDHOUSE_PROGRAMS").map_or_else(build, Into::into))
        .join(name)
}

fn build() -> PathBuf {
    // target/<profile>/deps/<this test>
    let test = std::env::current_exe().expect("a test is a program");
    let folder = test.parent().and_then(Path::parent).expect("tests are two folders down");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root()).env_remove("RUSTC_WORKSPACE_WRAPPER").args([
        "build",
        "--quiet",
        "-p",
        "roundhouse",
        "-p",
        "everything",
        "--bins",
    ]);
    cargo.arg("--target-dir").arg(folder.parent().expect("a profile has a target folder"));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(
        cargo.status().expect("cargo starts").success(),
        "the programs under test do not build"
    );
    folder.to_owned()
}

/// One of the workspace's programs, built as it is released. `ROUNDHOUSE_RELEASE` names the folder
/// of such programs; without it this one is built.
pub fn released(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("ROUNDHOUSE_RELEASE") {
        return Path::new(&folder).join(name);
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root()).env_remove("RUSTC_WORKSPACE_WRAPPER").args(["build", "--quiet"]);
    cargo.args(["--release", "--package", "roundhouse", "--bin", name]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let told = cargo.stderr(std::process::Stdio::inherit()).output().expect("cargo starts");
    assert!(told.status.success(), "the release of {name} does not build");
    let told = String::from_utf8_lossy(&told.stdout);
    let built = told.lines().filter_map(|line| serde_json::from_str(line).ok());
    let executable = |line: serde_json::Value| line["executable"].as_str().map(PathBuf::from);
    built.filter_map(executable).next().expect("cargo names the program")
}

/// The path of a file that `tests/setup` installed; panics with that hint if it is missing.
pub fn installed(path: &str) -> PathBuf {
    let path = root().join("tests/.tools").join(path);
    assert!(path.exists(), "{} is missing: run tests/setup", path.display());
    path
}

/// Node 22.
pub fn node() -> PathBuf {
    installed("bin/node")
}

/// The Python of one of the two environments, `py1` or `py2`.
pub fn python(which: &str) -> PathBuf {
    installed(&format!("{which}/bin/python"))
}

/// `PATH` with Node 22 as its first entry.
pub fn path() -> String {
    let before = root().join("tests/.tools/bin");
    format!("{}:{}", before.display(), std::env::var("PATH").unwrap_or_default())
}
