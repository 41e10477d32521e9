//! `roundhouse stdio`, when one of its streams breaks.

use super::*;

#[test]
fn a_broken_output_ends_the_process_though_its_input_stays_open() {
    let mut command = roundhouse(&["stdio", "--tenant", "demo"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    drop(child.stdout.take());
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "t", "version": "0" } });
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    writeln!(stdin, "{initialize}").unwrap();
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("the process does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1));
    let lines: Vec<_> = stderr.lines().map(Result::unwrap).collect();
    assert!(lines.iter().any(|line| line.contains("standard input or output")), "{lines:?}");
    drop(stdin);
}
