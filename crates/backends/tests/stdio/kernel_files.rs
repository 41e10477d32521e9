//! The files through which the kernel is configured.

use backends::sandbox::Protection;
use backends::stdio::StdioSettings;
use serde_json::Value;

use crate::stage::*;

/// Opens files of each kind for writing, and reports those that the kernel opened. It writes nothing:
/// the kernel decides when a file is opened.
const OPENS: &str = r#"
import json, os
opened = []
def may_write(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
        opened.append(path)
    except OSError:
        pass

for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger",
             "/proc/irq/default_smp_affinity", "/sys/power/state", "/sys/kernel/profiling",
             "/sys/kernel/mm/ksm/run"]:
    may_write(path)
for line in open("/proc/self/mounts"):
    _, mount, kind, *_ = line.split(" ")
    if kind in ("cgroup", "cgroup2"):
        may_write(mount + "/cgroup.procs")
print(json.dumps({"jsonrpc": "2.0", "method": "opened", "params": {"opened": opened}}), flush=True)
"#;

async fn opened(stage: &Stage) -> Vec<String> {
    let text = Talk::up(python(OPENS), stage).await.next_text().await;
    let report: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(report["params"]["opened"].clone()).unwrap()
}

#[tokio::test]
async fn a_server_cannot_configure_the_kernel_with_the_rights_of_its_user() {
    assert_eq!(opened(&sandboxed()).await, [""; 0]);
    if rustix::process::geteuid().is_root() {
        let without = granted().without(Protection::KernelFiles, "not wanted");
        let opened = opened(&with(without)).await;
        assert!(opened.iter().any(|path| path == "/proc/sys/vm/drop_caches"), "{opened:?}");
        assert!(opened.iter().any(|path| path.starts_with("/sys/")), "{opened:?}");
    }
}

/// As in a container whose runtime hides parts of `/proc`.
#[tokio::test]
async fn files_of_the_kernel_are_read_only_also_in_the_proc_of_the_node() {
    let stage = with(granted().without(Protection::OwnProc, "hidden parts"));
    assert_eq!(opened(&stage).await, [""; 0]);
}

#[tokio::test]
async fn a_server_still_writes_settings_of_its_own_processes() {
    let script = "open('/proc/self/comm', 'w').write('renamed')\n\
                  print('{\"jsonrpc\":\"2.0\",\"method\":\"%s\"}' % open('/proc/self/comm').read().strip())";
    let settings = StdioSettings { stop_grace_ms: 300, ..python(script) };
    let text = Talk::up(settings, &sandboxed()).await.next_text().await;
    assert!(text.contains("renamed"), "{text}");
}

#[tokio::test]
async fn a_server_cannot_make_the_mounts_writable_again_in_namespaces_of_its_own() {
    // `MS_REMOUNT | MS_BIND`, and a new `/proc`.
    let script = "import ctypes, os\nlibc = ctypes.CDLL(None)\n\
                  assert libc.unshare(0x30020000) == 0\n\
                  done = libc.mount(None, b'/proc/sys', None, 0x1020, None)\n\
                  if os.fork() == 0:\n    \
                      fresh = libc.mount(b'proc', b'/proc', b'proc', 0, None)\n    \
                      print('{\"jsonrpc\":\"2.0\",\"method\":\"%d %d\"}' % (done, fresh), flush=True)";
    let granted = granted().without(Protection::CallFilter, "it would refuse the call as well");
    let text = Talk::up(python(script), &with(granted)).await.next_text().await;
    assert!(text.contains("-1 -1"), "{text}");
}
