//! The private home directories of tenants' servers: where they are, and their creation when the
//! node starts.
//!
//! Programs that download servers (`npx`, `uvx`) keep what they download below `HOME`. A tenant
//! that wrote into another tenant's cache could change what that tenant starts. A service user often
//! has no home directory at all.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use backends::stdio::RunAs;
use rustix::fs::{Access, access};

use crate::node_variables::NodeVariables;
use crate::settings::Problems;

/// The permissions of the directories above the homes: other users can pass them, and not list
/// them.
const ABOVE: u32 = 0o711;

/// The permissions of a home.
const HOME: u32 = 0o700;

/// Where the homes of all tenants are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// Why the directory was chosen, if its content may not last.
    pub(crate) warning: Option<String>,
}

/// One home, and the user whose servers use it: the node's own, if none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) path: PathBuf,
    owner: Option<RunAs>,
}

impl StateDir {
    /// The directory under these settings: `node.state_dir`, systemd's `StateDirectory=`, the XDG
    /// directory of the user, or a directory of temporary files.
    pub(crate) fn choose(setting: &Path, variables: &NodeVariables) -> Self {
        Self::choose_if(setting, variables, |path| access(path, Access::WRITE_OK).is_ok())
    }

    fn choose_if(
        setting: &Path,
        variables: &NodeVariables,
        is_writable: impl Fn(&Path) -> bool,
    ) -> Self {
        let named = |name: &str| variables.get(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let lasting = |path: PathBuf| Self { path, warning: None };
        if !setting.as_os_str().is_empty() {
            return lasting(setting.to_owned());
        }
        // systemd separates several directories by colons.
        let of_systemd = variables.get("STATE_DIRECTORY").and_then(|path| path.to_str());
        let of_systemd = of_systemd.and_then(|paths| paths.split(':').next());
        if let Some(path) = of_systemd.map(PathBuf::from).filter(|path| path.is_absolute()) {
            return lasting(path);
        }
        if let Some(path) = named("XDG_STATE_HOME") {
            return lasting(path.join("roundhouse"));
        }
        // The home of many service users does not exist, or cannot be written.
        if let Some(home) = named("HOME").filter(|home| is_writable(home)) {
            return lasting(home.join(".local/state/roundhouse"));
        }
        let temporary = named("TMPDIR").unwrap_or_else(|| "/tmp".into());
        let path = temporary.join(format!("roundhouse-{}", rustix::process::geteuid().as_raw()));
        let warning = Some(format!(
            "the home directories of stdio servers, with the caches of npx and uvx, are in {}, which \
             may be emptied; name a lasting directory with `node.state_dir`",
            path.display()
        ));
        Self { path, warning }
    }

    /// Refuses a directory whose place depends on the working directory, which servers may change.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.path.is_absolute() {
            return Ok(());
        }
        Err(format!("`node.state_dir` is {:?}; write an absolute path", self.path))
    }

    /// The home of a tenant's servers that run as this user.
    pub(crate) fn home(&self, tenant: &str, owner: Option<&RunAs>) -> Home {
        Home { path: self.path.join("homes").join(tenant), owner: owner.cloned() }
    }
}

/// Creates the homes that do not exist, each for its user only.
pub(crate) fn create(homes: &[Home]) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for home in homes {
        problems.ok_or_add(create_one(home).map_err(|error| {
            format!(
                "the home directory {} of a tenant's servers cannot be used: {error}; name a \
                 directory that the node's user can write with `node.state_dir`",
                home.path.display()
            )
        }));
    }
    problems.or(())
}

fn create_one(home: &Home) -> io::Result<()> {
    if let Some(above) = home.path.parent() {
        DirBuilder::new().recursive(true).mode(ABOVE).create(above)?;
        // Otherwise another user could have made the directory, and could replace what is in it.
        check_owner(above, rustix::process::geteuid().as_raw())?;
        if let Some(state_dir) = above.parent() {
            check_owner(state_dir, rustix::process::geteuid().as_raw())?;
        }
    }
    match DirBuilder::new().mode(HOME).create(&home.path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    let Some(owner) = &home.owner else {
        return check_owner(&home.path, rustix::process::geteuid().as_raw());
    };
    let is_owned = fs::symlink_metadata(&home.path)?;
    if is_owned.is_dir() && is_owned.uid() != owner.uid {
        chown(&home.path, Some(owner.uid), Some(owner.gid))?;
    }
    check_owner(&home.path, owner.uid)
}

/// Refuses a directory that is a link, belongs to another user, or that others may change.
fn check_owner(path: &Path, uid: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let why = if !found.is_dir() {
        "is not a directory"
    } else if found.uid() != uid {
        "belongs to another user"
    } else if found.mode() & 0o022 != 0 {
        "can be changed by other users (chmod it to 711)"
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!("{} {why}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(setting: &str, pairs: &[(&str, &str)]) -> StateDir {
        let variables = pairs.iter().map(|(name, value)| (name.into(), value.into()));
        let writable = |path: &Path| path.starts_with("/home");
        StateDir::choose_if(Path::new(setting), &NodeVariables::of(variables), writable)
    }

    #[test]
    fn the_directory_is_the_setting_or_systemds_or_the_users_or_a_temporary_one() {
        let laptop = ("HOME", "/home/ada");
        for (setting, variables, wanted) in [
            ("/srv/state", &[("STATE_DIRECTORY", "/var/lib/roundhouse"), laptop][..], "/srv/state"),
            ("", &[("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), laptop], "/var/lib/a"),
            ("", &[("XDG_STATE_HOME", "/home/ada/state"), laptop], "/home/ada/state/roundhouse"),
            ("", &[laptop], "/home/ada/.local/state/roundhouse"),
        ] {
            let chosen = chosen(setting, variables);
            assert_eq!((chosen.path, chosen.warning), (wanted.into(), None));
        }
        let service = chosen("", &[("HOME", "/nonexistent"), ("TMPDIR", "/var/tmp")]);
        assert!(service.path.starts_with("/var/tmp"), "{service:?}");
        assert!(service.warning.unwrap().contains("`node.state_dir`"));
    }

    #[test]
    fn homes_are_created_for_their_user_only_and_twice_without_harm() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = chosen(folder.path().join("state").to_str().unwrap(), &[]);
        let homes = ["a", "b"].map(|tenant| state_dir.home(tenant, None));
        for _ in 0..2 {
            create(&homes).unwrap();
        }
        for home in &homes {
            assert_eq!(fs::metadata(&home.path).unwrap().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let home = chosen(folder.path().to_str().unwrap(), &[]).home("a", None);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::create_dir(folder.path().join("homes")).unwrap();
        fs::set_permissions(folder.path().join("homes"), open).unwrap();
        let refusal = create(&[home]).unwrap_err().to_string();
        assert!(refusal.contains("can be changed by other users"), "{refusal}");
        assert!(refusal.contains("`node.state_dir`"), "{refusal}");
    }
}
