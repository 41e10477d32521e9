//! The hidden second role of the program: the guard process of one child server.
//!
//! A guard is this same program, started again with a first argument that is not part of the
//! command line's help. [`backends::guard`] describes it.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use backends::guard::Guard;

/// The first argument that makes the program a guard.
const WORD: &str = "__guard";

/// This program has called [`enter`], so it can start itself as a guard.
static CAN_GUARD: AtomicBool = AtomicBool::new(false);

/// Call this first in `main`, before any thread starts. It prevents other processes of the same
/// user from reading this process or attaching to it, and disables core dumps. Otherwise a
/// tenant's server, which runs as the same user, could read secrets and other tenants' sessions
/// in `/proc/<pid>/environ` and `mem`, and open this process's sockets in `fd`.
///
/// If the process was started to guard a child, this function does so and never returns.
/// Otherwise it records that this program can guard children; without this call, a child of a
/// killed node may stay, and no child is separated from the others.
pub fn enter() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|word| word == WORD) {
        // A guard makes itself unreadable once it has the namespaces of its server.
        std::process::exit(backends::guard::run(args));
    }
    if let Err(error) = backends::guard::not_dumpable() {
        let _ = writeln!(
            std::io::stderr(),
            "roundhouse: servers of tenants can read this process's memory: {error}"
        );
    }
    CAN_GUARD.store(true, Ordering::Relaxed);
}

/// How children of this process are guarded.
pub(crate) fn of_this_program() -> Option<Guard> {
    CAN_GUARD.load(Ordering::Relaxed).then(|| Guard::this_program(WORD))
}
