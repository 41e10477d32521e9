//! The list of places that a server may write, enforced by Landlock.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, path_beneath_rules,
};

use super::server::for_server;

/// The newest version of Landlock whose rights are asked for: the first that covers truncation.
/// Of older kernels the rights that they have are asked for.
const VERSION: ABI = ABI::V3;

/// Places that every program needs to write: its terminal and `/dev/null`, and settings of its
/// own processes.
const ALWAYS: [&str; 2] = ["/dev", "/proc"];

/// Denies this process and what it starts to write, create, remove or rename files anywhere but
/// below these paths. A path that does not exist is left out.
pub(super) fn restrict(paths: &[PathBuf]) -> io::Result<()> {
    let writes = AccessFs::from_write(VERSION);
    let always = ALWAYS.into_iter().map(PathBuf::from);
    // The server's own variable, if it has one, not that of the node.
    let temporary = std::env::var_os(for_server(OsStr::new("TMPDIR")));
    let temporary = temporary.map_or_else(std::env::temp_dir, PathBuf::from);
    let allowed = always.chain([temporary]).chain(paths.iter().cloned());
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(writes)
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(allowed, writes)))
        .and_then(|ruleset| ruleset.restrict_self())
        .map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(io::Error::other("the kernel has no Landlock")),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

/// Whether the kernel also denies to empty files elsewhere.
pub(super) fn covers_truncation() -> io::Result<()> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Truncate)
        .map(drop)
        .map_err(|_| io::Error::other("needs Landlock of Linux 6.2"))
}
