//! Runs the commands that ask a running node: each sends a request to its admin port and prints the
//! answer.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::admin_client::{Client, RefusedRequest, printable, segment, with_query};
use crate::cli::{Drain, EndSession, Operator, OperatorCommand, Sessions, Tenants};
use crate::{revoke_command, unlink_command};

/// When a draining node is asked first how many sessions it has. Each further time comes after twice the time
/// of the one before, at most [`LOOK_MAX`]: each asks all nodes.
const LOOK: Duration = Duration::from_millis(250);

/// See [`LOOK`].
const LOOK_MAX: Duration = Duration::from_secs(4);

/// How much longer than its grace period a drain may take, with `--wait`.
const MARGIN: Duration = Duration::from_secs(60);

/// Runs one command. Returns what it prints.
pub(crate) fn run(command: &OperatorCommand) -> anyhow::Result<String> {
    match command {
        OperatorCommand::Nodes(operator) => listed(operator, "/v1/nodes", "nodes", &NODES),
        OperatorCommand::Tenants(tenants) => self::tenants(tenants),
        OperatorCommand::Sessions(sessions) => self::sessions(sessions),
        OperatorCommand::Drain(drain) => self::drain(drain),
        OperatorCommand::Undrain(operator) => {
            let answer = Client::new(operator)?.delete("/drain")?;
            done(operator, answer.text())
        }
        OperatorCommand::EndSession(end) => end_session(end),
        OperatorCommand::Revoke(revoke) => revoke_command::run(revoke),
        OperatorCommand::Unlink(unlink) => unlink_command::run(unlink),
    }
}

/// A column of a table: its title, and how its cell is read from an object of the list.
pub(crate) type Column = (&'static str, fn(&Value) -> String);

const NODES: [Column; 6] = [
    ("NODE", |node| {
        let own = if node["self"] == true { " *" } else { "" };
        format!("{}{own}", text(&node["name"]))
    }),
    ("ADDRESS", |node| text(&node["address"])),
    ("VERSION", |node| text(&node["version"])),
    ("SESSIONS", |node| text(&node["sessions"])),
    ("LINKED", |node| node["linked"].as_array().map_or(0, Vec::len).to_string()),
    ("STATE", |node| {
        let reasons = node["reasons"].as_array().map(Vec::as_slice).unwrap_or_default();
        match (node["ready"].as_bool(), node["draining"] == true) {
            (Some(true), false) => "ready".to_owned(),
            (Some(false), _) => reasons.iter().map(text).collect::<Vec<_>>().join(", "),
            (_, true) => "draining".to_owned(),
            (None, false) => "unknown".to_owned(),
        }
    }),
];

const TENANTS: [Column; 7] = [
    ("TENANT", |tenant| text(&tenant["name"])),
    ("AUTH", |tenant| words(&tenant["auth"])),
    ("NODES", |tenant| tenant["nodes"].as_array().map_or(0, Vec::len).to_string()),
    ("SESSIONS", |tenant| of(&tenant["sessions"], &tenant["limits"]["sessions_max"])),
    ("BYTES", |tenant| of(&tenant["session_bytes"], &tenant["limits"]["session_bytes_max"])),
    ("CHILDREN", |tenant| of(&tenant["children"], &tenant["limits"]["children_max"])),
    ("HOSTS", |tenant| words(&tenant["hosts"])),
];

const SESSIONS: [Column; 10] = [
    ("SESSION", |session| text(&session["id"])),
    ("TENANT", |session| text(&session["tenant"])),
    ("PRINCIPAL", |session| text(&session["principal"])),
    ("NODE", |session| text(&session["node"])),
    ("REVISION", |session| text(&session["revision"])),
    ("CLIENT", |session| text(&session["client"])),
    ("AT NODE", |session| age(&session["at_node_secs"])),
    ("IDLE", |session| age(&session["idle_secs"])),
    ("CALLS", |session| text(&session["requests"])),
    ("STREAMS", |session| text(&session["streams"])),
];

const SLEEPING: [Column; 5] = [
    ("SESSION", |session| text(&session["id"])),
    ("TENANT", |session| text(&session["tenant"])),
    ("REVISION", |session| text(&session["revision"])),
    ("CLIENT", |session| text(&session["client"])),
    ("STATE", |session| match session["released"].as_bool() {
        Some(true) => "sleeping".to_owned(),
        Some(false) => "node lost".to_owned(),
        None => "-".to_owned(),
    }),
];

/// A value as a cell; `-` for none. What clients chose has no control characters.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    }
}

fn words(value: &Value) -> String {
    let words = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let words: Vec<_> = words.iter().map(text).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

fn of(used: &Value, max: &Value) -> String {
    format!("{}/{}", text(used), text(max))
}

fn age(secs: &Value) -> String {
    match secs.as_u64() {
        None => "-".to_owned(),
        Some(secs @ 0..120) => format!("{secs}s"),
        Some(secs @ 120..7_200) => format!("{}m", secs / 60),
        Some(secs @ 7_200..172_800) => format!("{}h", secs / 3_600),
        Some(secs) => format!("{}d", secs / 86_400),
    }
}

fn listed(
    operator: &Operator,
    path: &str,
    list: &str,
    columns: &[Column],
) -> anyhow::Result<String> {
    let answer = Client::new(operator)?.get(path)?.json()?;
    shown(operator, &answer, list, columns)
}

/// An answer as JSON, or its list as a table. Nodes that could not be asked are named in either.
pub(crate) fn shown(
    operator: &Operator,
    answer: &Value,
    list: &str,
    columns: &[Column],
) -> anyhow::Result<String> {
    let rows = answer[list].as_array().with_context(|| {
        format!("the answer has no list of {list}: a node of another version listens there")
    })?;
    for unasked in answer["unasked"].as_array().into_iter().flatten() {
        let (node, reason) = (text(&unasked["node"]), text(&unasked["reason"]));
        note(&format!("node {node} could not be asked: {reason}"));
    }
    if operator.json { json(answer) } else { Ok(table(rows, columns)) }
}

pub(crate) fn json(answer: &Value) -> anyhow::Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(answer)?))
}

fn table(rows: &[Value], columns: &[Column]) -> String {
    let title = columns.iter().map(|(title, _)| (*title).to_owned()).collect::<Vec<_>>();
    let cells = rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(title).chain(cells).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    lines.iter().map(line).collect()
}

fn tenants(tenants: &Tenants) -> anyhow::Result<String> {
    let Tenants { limit, after, operator } = tenants;
    let path = with_query(
        "/v1/tenants",
        &[
            ("limit", limit.as_ref().map(|limit| limit as _)),
            ("after", after.as_ref().map(|after| after as _)),
        ],
    );
    let answer = Client::new(operator)?.get(&path)?.json()?;
    note_next(operator, &answer);
    shown(operator, &answer, "tenants", &TENANTS)
}

/// Names the option that shows the next page. In JSON it is `next`.
fn note_next(operator: &Operator, answer: &Value) {
    if let Some(next) = answer["next"].as_str().filter(|_| !operator.json) {
        note(&format!("there are more: add `--after {}`", printable(next)));
    }
}

fn sessions(sessions: &Sessions) -> anyhow::Result<String> {
    let Sessions { tenant, sleeping, limit, after, operator } = sessions;
    let is_sleeping = sleeping.then_some("true");
    let path = with_query(
        "/v1/sessions",
        &[
            ("tenant", tenant.as_ref().map(|tenant| tenant as _)),
            ("limit", Some(limit)),
            ("after", after.as_ref().map(|after| after as _)),
            ("sleeping", is_sleeping.as_ref().map(|sleeping| sleeping as _)),
        ],
    );
    let answer = Client::new(operator)?.get(&path)?.json()?;
    note_next(operator, &answer);
    if let Some(unread @ 1..) = answer["unread"].as_u64() {
        note(&format!("{unread} records could not be read; see the log of the node"));
    }
    shown(operator, &answer, "sessions", if *sleeping { &SLEEPING } else { &SESSIONS })
}

fn end_session(end: &EndSession) -> anyhow::Result<String> {
    let EndSession { session, tenant, operator } = end;
    let path = format!("/v1/sessions/{}", segment(session));
    let path = with_query(&path, &[("tenant", tenant.as_ref().map(|tenant| tenant as _))]);
    let answer = Client::new(operator)?.delete(&path)?.json()?;
    if operator.json {
        return json(&answer);
    }
    let ended = &answer["ended"];
    let (id, tenant, node) = (text(&ended["id"]), text(&ended["tenant"]), text(&ended["node"]));
    Ok(format!("ended session {id} of tenant {tenant} at node {node}\n"))
}

fn drain(drain: &Drain) -> anyhow::Result<String> {
    let Drain { secs, wait, operator } = drain;
    let client = Client::new(operator)?;
    let answer = client.post(&with_query("/drain", &[("secs", Some(secs))]), None)?;
    if !wait {
        return done(operator, answer.text());
    }
    let until = Instant::now() + Duration::from_secs((*secs).into()) + MARGIN;
    wait_until_drained(&client, until)?;
    done(operator, "drained: the node has no session")
}

/// Waits until the node has no session. A node that does not answer, or cannot at the moment, is asked again.
fn wait_until_drained(client: &Client, until: Instant) -> anyhow::Result<()> {
    const GOES_ON: &str = "the node goes on draining; see its log, or run `roundhouse nodes`";
    let mut pause = LOOK;
    loop {
        let is_late = Instant::now() >= until;
        match sessions_left(client) {
            Ok(Some(0)) => return Ok(()),
            Ok(None) => bail!("the node does not tell how many sessions it has; {GOES_ON}"),
            Ok(Some(left)) if is_late => bail!("the node still has {left} sessions; {GOES_ON}"),
            Err(error) if is_late || is_final(&error) => {
                return Err(
                    error.context(format!("how many sessions it has is not known; {GOES_ON}"))
                );
            }
            Ok(Some(_)) | Err(_) => {}
        }
        std::thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(LOOK_MAX);
    }
}

fn is_final(error: &anyhow::Error) -> bool {
    error.downcast_ref::<RefusedRequest>().is_some_and(RefusedRequest::is_final)
}

/// How many sessions the node has that is asked; `None` if it does not say.
fn sessions_left(client: &Client) -> anyhow::Result<Option<u64>> {
    let nodes = client.get("/v1/nodes")?.json()?;
    let own = nodes["nodes"].as_array().into_iter().flatten().find(|node| node["self"] == true);
    Ok(own.and_then(|own| own["sessions"].as_u64()))
}

/// The outcome of an action whose answer is text.
fn done(operator: &Operator, outcome: &str) -> anyhow::Result<String> {
    let outcome = printable(outcome.trim());
    match operator.json {
        true => json(&serde_json::json!({ "outcome": outcome })),
        false => Ok(format!("{outcome}\n")),
    }
}

/// Writes a note to standard error: standard output has the answer alone.
pub(crate) fn note(note: &str) {
    // If no process reads standard error, the notes are lost.
    let _ = writeln!(io::stderr(), "note: {note}");
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    /// A client of a node that answers so, one request after the other, and then closes.
    fn node_that_answers(answers: Vec<(u16, String)>) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let head = BufReader::new(&stream).lines().map_while(Result::ok);
                head.take_while(|line| !line.is_empty()).for_each(drop);
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        Client::new(&Operator { admin, token_file: None, json: false }).unwrap()
    }

    #[test]
    fn a_wait_for_a_drain_outlives_answers_that_fail() {
        let nodes = |sessions| json!({ "nodes": [{ "self": true, "sessions": sessions }] });
        let busy = || (503, json!({ "error": "ask again" }).to_string());
        let left = |sessions: u64| (200, nodes(sessions).to_string());
        let soon = || Instant::now() + Duration::from_secs(20);
        let client = node_that_answers(vec![busy(), left(2), busy(), left(0)]);
        wait_until_drained(&client, soon()).unwrap();
        // What is refused for good is said at once, and what the node does.
        for (status, until) in [(403, soon()), (503, Instant::now())] {
            let client = node_that_answers(vec![(status, json!({ "error": "no" }).to_string())]);
            let error = format!("{:#}", wait_until_drained(&client, until).unwrap_err());
            assert!(error.contains("goes on draining") && error.contains("no ("), "{error}");
        }
    }

    #[test]
    fn a_table_has_aligned_columns_and_nothing_that_controls_a_terminal() {
        let rows = [
            json!({ "id": "0f", "tenant": "acme", "client": "a\u{1b}[2J", "idle_secs": 130 }),
            json!({ "id": "1f2e", "tenant": "b", "requests": 2 }),
        ];
        let table = table(&rows, &SESSIONS);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(lines[1].starts_with("0f       acme "), "{table}");
        assert!(lines[1].contains("2m") && !table.contains('\u{1b}'), "{table}");
        assert!(lines[2].starts_with("1f2e     b "), "{table}");
    }
}
