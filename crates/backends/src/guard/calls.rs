//! The filter of system calls: a short list of calls that no MCP server needs and that attacks on
//! the kernel or on other processes use.
//!
//! Calls that make namespaces are not on it: browsers confine their own processes with them.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// System calls that fail with `EPERM`.
const DENIED: &[libc::c_long] = &[
    // Mounts.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // Other processes, and their files.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // The keys of the kernel, which belong to the user and not to a namespace.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// The same calls have this added to their number in the x32 interface of `x86_64`.
#[cfg(target_arch = "x86_64")]
const X32: libc::c_long = 0x4000_0000;

/// Denies the calls to this process and what it starts. Needs `no_new_privs`.
pub(super) fn filter() -> io::Result<()> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(
        denied().map(|call| (call, Vec::new())).collect::<BTreeMap<_, _>>(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        architecture,
    );
    let program: BpfProgram = filter.and_then(BpfProgram::try_from).map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

#[cfg(target_arch = "x86_64")]
fn denied() -> impl Iterator<Item = libc::c_long> {
    DENIED.iter().flat_map(|call| [*call, call | X32])
}

#[cfg(not(target_arch = "x86_64"))]
fn denied() -> impl Iterator<Item = libc::c_long> {
    DENIED.iter().copied()
}
