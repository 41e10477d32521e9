//! Measures the memory of an idle session in the memory store. A separate test program, since it
//! measures the whole process.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;
use store::{Batch, Digest, Incarnation, Memory, Owner, Record, RecordStatus, State, Store, Token};

const SESSIONS: usize = 100_000;

/// 100 bytes: short params that still contain the name of a client.
const PARAMS: &[u8] = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"cli","version":"1.2.3-beta"}}"#;

#[tokio::test]
async fn an_idle_session_takes_less_than_600_bytes() {
    let (store, tenant) = (Memory::default(), Arc::<str>::from("demo"));
    let ttl = Duration::from_secs(1_800);
    let before = resident_bytes();
    for number in 0..SESSIONS {
        let session = SessionId::parse(&format!("5f0c1f0e-1d7c-4a38-9a6f-{number:012x}-a1b2c3d4"))
            .expect("a valid id");
        let token = Token::first(number as u64);
        let record = Record {
            owner: Owner { token, node: Incarnation(1) },
            former: Vec::new(),
            tenant: Arc::clone(&tenant),
            principal: Digest([0; 32]),
            revision: "2025-11-25".into(),
            initialize: PARAMS.into(),
            state: State { version: 1, bytes: (*b"{}").into() },
            status: RecordStatus::Owned,
        };
        store.create(&session, record, ttl).await.expect("created");
        // The log had an entry, which was trimmed.
        let entries = vec![Bytes::from_static(b"entry")];
        let batch = Batch { session, token, first: 1, floor: 1, entries, ttl, prolongs: true };
        store.append(batch.clone()).await.expect("stored");
        let trim = Batch { first: 2, floor: 2, entries: Vec::new(), ..batch };
        store.append(trim).await.expect("stored");
    }
    let each = resident_bytes().saturating_sub(before) / SESSIONS;
    assert!(each < 600, "{each} bytes a session");
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its size");
    let kilobytes = line.split_whitespace().nth(1).expect("a number");
    kilobytes.parse::<usize>().expect("a number") * 1_024
}
