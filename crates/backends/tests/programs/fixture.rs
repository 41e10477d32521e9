//! A guard (`fixture guard …`), or a node (`fixture node COMMAND…`) that hosts one command, copies
//! its messages to standard output, and waits to be killed. A `sandboxed-node` gives the command all
//! protections that the machine grants. `fixture keeps-capabilities …` is a guard on a machine whose
//! kernel does not let a process give capabilities up.

use std::ffi::OsString;
use std::io::Write as _;

use backends::guard::{self, Guard};
use backends::sandbox::Protections;
use backends::stdio::{Children, StdioBackend, StdioSettings};
use backends::{Backend as _, LinkEvent};
use protocol::SessionId;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let role = args.next().unwrap_or_default();
    match role.to_str() {
        Some("guard") => std::process::exit(guard::run(args)),
        Some("keeps-capabilities") => {
            refuse_to_drop_capabilities();
            std::process::exit(guard::run(args))
        }
        Some("node") => node(Protections::none("not wanted"), args.collect()),
        Some("sandboxed-node") => {
            node(Protections::probe(Some(&own_guard()), None), args.collect())
        }
        _ => std::process::exit(2),
    }
}

/// `PR_CAPBSET_DROP` fails with `EPERM`, for this process and what it starts.
fn refuse_to_drop_capabilities() {
    let operation = u64::try_from(libc::PR_CAPBSET_DROP).expect("a small number");
    let drops = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, operation);
    let rule = SeccompRule::new(vec![drops.expect("the first argument")]).expect("a condition");
    let filter = SeccompFilter::new(
        [(libc::SYS_prctl, vec![rule])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        std::env::consts::ARCH.try_into().expect("an architecture of the crate"),
    );
    let program = BpfProgram::try_from(filter.expect("a filter")).expect("a program");
    seccompiler::apply_filter(&program).expect("the kernel to accept the filter");
}

fn own_guard() -> Guard {
    Guard::this_program("guard")
}

#[tokio::main(flavor = "current_thread")]
async fn node(protections: Protections, command: Vec<OsString>) {
    let mut command = command.into_iter().filter_map(|word| word.into_string().ok());
    let settings = StdioSettings::new(command.next().unwrap_or_default(), command);
    let children = Children::new(Default::default(), Some(own_guard()), std::env::vars_os());
    let session = SessionId::parse("fixture").expect("a session id");
    let mut link = StdioBackend::new("fixture", settings, protections, children).open(&session);
    while let Some(event) = link.events.next().await {
        if let LinkEvent::Message { message, .. } = event {
            let mut stdout = std::io::stdout().lock();
            let _ = stdout.write_all(&message.line());
            let _ = stdout.write_all(b"\n");
            let _ = stdout.flush();
        }
    }
}
