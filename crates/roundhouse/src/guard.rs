//! The hidden second role of the program: guarding one child server.
//!
//! A guard is this same program, started again with a first argument that no user types.
//! [`backends::guard`] describes it.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use backends::guard::Guard;
#[cfg(target_os = "linux")]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// The first argument that makes the program a guard.
const WORD: &str = "__guard";

/// This program has called [`enter`], so it can be started again as a guard.
static CAN_GUARD: AtomicBool = AtomicBool::new(false);

/// Call this first in `main`, before any thread starts. It makes the process one that other
/// processes of its user can neither read nor attach to, and that leaves no core dump: a
/// tenant's server, which runs as the same user, else reads secrets and other tenants' sessions
/// in `/proc/<pid>/environ` and `mem`, and opens this process's sockets in `fd`.
///
/// Where the process was started to
/// guard a child, this does it and never returns. Else it notes that children may be
/// guarded by this program; without it, a child of a node that is killed may stay.
pub fn enter() {
    #[cfg(target_os = "linux")]
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        let _ = writeln!(
            std::io::stderr(),
            "roundhouse: servers of tenants can read this process's memory: {error}"
        );
    }
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|word| word == WORD) {
        std::process::exit(backends::guard::run(args));
    }
    CAN_GUARD.store(true, Ordering::Relaxed);
}

/// How children of this process are guarded.
pub(crate) fn of_this_program() -> Option<Guard> {
    CAN_GUARD.load(Ordering::Relaxed).then(|| Guard::this_program(WORD))
}
