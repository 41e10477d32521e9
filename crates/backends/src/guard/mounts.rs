//! What a server's mount namespace has in place of the node's: a `/proc` of its own, and read-only
//! mounts of the files through which the kernel is configured.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount,
};

use super::mount_table::{self, Mount};

/// Most namespaces of each kind that a server may make; a further one fails. The kernel counts
/// them for the node's user as well: without a bound, one server could use up what others need to
/// start. Browsers make a few.
const FURTHER_MAX: &str = "64";

/// The kinds of namespaces that a server could make.
const KINDS: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// The parts of `/proc` that configure the kernel or its devices. The kernel compares only the user
/// of a process that opens them, so that root may write them also without capabilities. Container
/// runtimes mount the same ones read-only.
const OF_PROC: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The file systems whose files configure the kernel. With `node.cgroup`, the files of a server's
/// cgroup belong to the node's user.
const OF_KERNEL: [&str; 13] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "efivarfs",
    "fusectl",
    "pstore",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Mounts the `/proc` of this process's PID namespace over that of the node. The kernel refuses it
/// where parts of the node's own `/proc` are hidden, as in most containers. Also bounds the further
/// namespaces of the server, which needs that `/proc`.
pub(super) fn mount_proc() -> io::Result<()> {
    receive_only()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    for kind in KINDS {
        // A kernel without one of the kinds has no such file.
        let _ = fs::write(format!("/proc/sys/user/max_{kind}_namespaces"), FURTHER_MAX);
    }
    Ok(())
}

/// Makes the files through which the kernel is configured read-only in this mount namespace, after
/// [`mount_proc`]. A server cannot undo it: it has no capabilities here, and in namespaces of
/// its own the kernel keeps mounts read-only.
pub(super) fn protect_kernel_files() -> io::Result<()> {
    receive_only()?;
    for path in OF_PROC {
        // With what is mounted below: the kernel refuses to show what those mounts cover.
        match mount_bind_recursive(path, path) {
            // The kernel was built without it, or a container runtime hides it.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for mount in mount_table::read()?.iter().filter(|mount| configures_kernel(mount)) {
        // Nothing can be opened below a mount that its path does not lead to.
        if mount.is_reachable()? {
            remount_read_only(mount)?;
        }
    }
    Ok(())
}

fn configures_kernel(mount: &Mount) -> bool {
    OF_KERNEL.contains(&mount.file_system.as_str())
        || OF_PROC.iter().chain([&"/sys"]).any(|path| mount.path.starts_with(path))
        // A further `/proc`, such as that of a folder that is prepared for `chroot`.
        || (mount.file_system == "proc" && !mount.path.starts_with("/proc"))
}

fn remount_read_only(mount: &Mount) -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | mount.flags;
    mount_remount(&mount.path, flags, "").map_err(|error| {
        io::Error::other(format!("{} cannot be mounted read-only: {error}", mount.path.display()))
    })
}

/// Mounts of the system still arrive here, but nothing that is mounted here is seen outside.
fn receive_only() -> io::Result<()> {
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}
