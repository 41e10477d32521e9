//! Tests the messages between sessions and servers.

use backends::SendError;
use backends::stdio::{INHERITED, INHERITED_FOR_DOWNLOADS};

use crate::stage::*;

const ECHO: &str = "exec cat";
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

#[tokio::test]
async fn messages_reach_the_server_and_its_messages_reach_the_session() {
    for children in [guarded(), unguarded()] {
        let mut talk = Talk::up(sh(ECHO), &children).await;
        talk.send(PING);
        assert_eq!(talk.next_text().await, PING);
        assert_eq!(children.children.count(), 1);
        drop(talk);
        stopped(&children).await;
    }
}

#[tokio::test]
async fn a_message_is_sent_on_one_line() {
    let mut talk = Talk::up(sh(ECHO), &guarded()).await;
    talk.send("{\"jsonrpc\":\"2.0\",\n\"method\":\"x\"}");
    assert_eq!(talk.next_text().await, r#"{"jsonrpc":"2.0", "method":"x"}"#);
}

#[tokio::test]
async fn a_large_message_passes_both_ways() {
    let mut talk = Talk::up(sh(ECHO), &guarded()).await;
    let large =
        format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"a":"{}"}}}}"#, "a".repeat(3 << 20));
    talk.send(&large);
    assert_eq!(talk.next_text().await.len(), large.len());
}

/// STD-01, STD-02, STD-07.
#[tokio::test]
async fn a_banner_junk_and_empty_lines_are_skipped_and_batches_and_crlf_are_accepted() {
    let script = r#"
        echo 'Welcome to the server!'
        echo '{"jsonrpc":"1.0","id":1,"method":"old"}'
        printf '\377\376\n\n'
        printf '{"jsonrpc":"2.0","method":"a"}\r\n'
        echo '[{"jsonrpc":"2.0","method":"b"},{"not":"a message"},{"jsonrpc":"2.0","method":"c"}]'
        printf '{"jsonrpc":"2.0","method":"cut"}'
    "#;
    let mut talk = Talk::up(sh(script), &guarded()).await;
    for method in ["a", "b", "c"] {
        assert_eq!(talk.next_text().await, format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#));
    }
    assert_eq!(talk.down().await, "the server exited with status 0");
}

/// STD-03.
#[tokio::test]
async fn ten_megabytes_of_stderr_do_not_block_the_server() {
    let script = r#"head -c 10485760 /dev/zero >&2; echo >&2; yes 'a line' | head -c 10485760 >&2; exec cat"#;
    let mut talk = Talk::up(sh(script), &guarded()).await;
    talk.send(PING);
    assert_eq!(talk.next_text().await, PING);
}

/// STD-11.
#[tokio::test]
async fn a_line_that_is_too_long_ends_the_link_and_the_server() {
    let children = guarded();
    let mut settings = sh("head -c 100000000 /dev/zero | tr '\\0' x; exec sleep 600");
    settings.line_bytes_max = 1 << 20;
    let mut talk = Talk::up(settings, &children).await;
    assert_eq!(talk.down().await, "the server wrote a line of more than 1048576 bytes");
    stopped(&children).await;
}

/// STD-11.
#[tokio::test]
async fn sending_fails_without_blocking_if_a_server_does_not_read() {
    let children = guarded();
    let talk = Talk::up(sh("exec sleep 600"), &children).await;
    let large = message(&format!(
        r#"{{"jsonrpc":"2.0","method":"x","params":{{"a":"{}"}}}}"#,
        "a".repeat(1 << 20)
    ));
    let mut sent = 0;
    let refused = loop {
        match talk.link.sender.send(large.clone()) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 20, "no bound");
        tokio::task::yield_now().await;
    };
    assert_eq!(refused, SendError::Full);
    drop(talk);
    stopped(&children).await;
}

#[tokio::test]
async fn a_session_that_does_not_read_slows_its_server_and_loses_nothing() {
    let script = "import sys\nfor n in range(2000): print('{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{\"n\":%d}}' % n)";
    let mut talk = Talk::up(python(script), &guarded()).await;
    for number in 0..2000 {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"n":{number}}}}}"#);
        assert_eq!(talk.next_text().await, text);
    }
    assert_eq!(talk.down().await, "the server exited with status 0");
}

#[tokio::test]
async fn messages_and_exit_status_of_a_server_that_dies_during_a_call_arrive() {
    let script = r#"read line; echo '{"jsonrpc":"2.0","method":"last"}'; exit 3"#;
    for children in [guarded(), unguarded()] {
        let mut talk = Talk::up(sh(script), &children).await;
        talk.send(PING);
        assert_eq!(talk.next_text().await, r#"{"jsonrpc":"2.0","method":"last"}"#);
        assert_eq!(talk.down().await, "the server exited with status 3");
        assert_eq!(talk.link.sender.send(message(PING)), Err(SendError::Down));
    }
}

#[tokio::test]
async fn the_link_of_a_killed_server_is_down_with_the_signal_as_the_reason() {
    let mut talk = Talk::up(sh("kill -9 $$"), &guarded()).await;
    assert_eq!(talk.down().await, "the server exited with status 137 (signal 9)");
    let mut talk = Talk::up(sh("kill -9 $$"), &unguarded()).await;
    assert_eq!(talk.down().await, "the server was killed by signal 9");
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_down_without_naming_it() {
    let settings = || backends::stdio::StdioSettings::new("no-such-program", ["--secret"]);
    let mut talk = Talk::up(settings(), &guarded()).await;
    assert_eq!(talk.down().await, "the server exited with status 127 (command not found)");
    let mut talk = Talk::open(settings(), &unguarded());
    assert_eq!(talk.down().await, "the command of the server was not found");
}

#[tokio::test]
async fn a_server_that_only_closes_its_output_is_down_and_stopped() {
    let children = guarded();
    let mut talk = Talk::up(sh("exec >&-; sleep 600"), &children).await;
    assert_eq!(talk.down().await, "the server closed its output");
    stopped(&children).await;
}

#[tokio::test]
async fn the_environment_has_only_inherited_and_configured_variables() {
    // The environment at the start, before a shell adds to it.
    let script = r#"
given=$(tr '\0' '|' < /proc/$$/environ)
printf '{"jsonrpc":"2.0","method":"env","params":{"given":"%s"}}\n' "$given"
"#;
    for children in [guarded(), unguarded()] {
        let mut settings = sh(script);
        settings.env.insert("LOG".into(), "info".into());
        settings.env.insert("TZ".into(), "UTC".into());
        let mut talk = Talk::up(settings, &children).await;
        let said: serde_json::Value = serde_json::from_str(&talk.next_text().await).unwrap();
        let given = said["params"]["given"].as_str().unwrap();
        let mut variables: Vec<&str> = given.split_terminator('|').collect();
        assert!(variables.contains(&"LOG=info") && variables.contains(&"TZ=UTC"));
        variables.retain(|variable| !variable.starts_with("LOG="));
        for variable in variables {
            let (name, _) = variable.split_once('=').unwrap();
            let is_expected = INHERITED.contains(&name)
                || INHERITED_FOR_DOWNLOADS.contains(&name)
                || name == "ROUNDHOUSE_CHILD";
            assert!(is_expected, "{name} was inherited");
        }
    }
}

#[tokio::test]
async fn a_server_runs_in_the_configured_directory() {
    let folder = tempfile::tempdir().unwrap();
    for children in [guarded(), unguarded()] {
        let mut settings =
            sh(r#"printf '{"jsonrpc":"2.0","method":"at","params":{"at":"%s"}}\n' "$(pwd -P)""#);
        settings.cwd = Some(folder.path().to_owned());
        let mut talk = Talk::up(settings, &children).await;
        let at = folder.path().canonicalize().unwrap();
        assert!(talk.next_text().await.contains(at.to_str().unwrap()));
    }
}

#[tokio::test]
async fn the_limits_of_a_server_are_enforced() {
    let script = r#"
import json, resource
try:
    bytearray(200 << 20)
    fits = True
except MemoryError:
    fits = False
files = resource.getrlimit(resource.RLIMIT_NOFILE)
core = resource.getrlimit(resource.RLIMIT_CORE)
cpu = resource.getrlimit(resource.RLIMIT_CPU)
print(json.dumps({"jsonrpc": "2.0", "method": "x", "params": {"a": [fits, files, core, cpu]}}))
"#;
    let mut settings = python(script);
    settings.memory_bytes_max = Some(100 << 20);
    settings.files_max = Some(64);
    settings.cpu_secs_max = Some(30);
    let mut talk = Talk::up(settings, &guarded()).await;
    let said = talk.next_text().await;
    assert!(said.contains("[false, [64, 64], [0, 0], [30, 30]]"), "{said}");
}

#[tokio::test]
async fn a_variable_of_the_server_does_not_reach_its_guard() {
    let script = r#"
import json, os
guard = open(f"/proc/{os.getppid()}/environ", "rb").read().decode()
ours = os.environ["LD_LIBRARY_PATH"]
print(json.dumps({"jsonrpc": "2.0", "method": "x", "params": {"a": [ours, "\0LD_" in "\0" + guard]}}))
"#;
    let mut settings = python(script);
    settings.env.insert("LD_LIBRARY_PATH".into(), "/nowhere".into());
    let mut talk = Talk::up(settings, &guarded()).await;
    let said = talk.next_text().await;
    assert!(said.contains(r#"["/nowhere", false]"#), "{said}");
}
