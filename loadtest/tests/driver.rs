//! The load driver against servers with known behaviour: its counts equal those of the
//! servers, it counts their errors as failures, and it rejects wrong arguments with a reason.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use serde_json::{Value, json};

/// A server with sessions and one tool, on one thread.
#[derive(Default)]
struct Known {
    calls: AtomicU64,
    ended: AtomicU64,
    /// Each call whose number is a multiple of this is refused; with 0, no call is.
    refuses: u64,
    /// The server blocks at this call, for `stall`.
    stalls_at: u64,
    stall: Duration,
}

impl Known {
    /// Runs the server until the process ends, and returns its URL.
    fn serve(self: &Arc<Self>) -> String {
        let (known, (said, saying)) = (Arc::clone(self), std::sync::mpsc::sync_channel(1));
        std::thread::spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let known = web::Data::from(known);
                let app = move || {
                    App::new()
                        .app_data(known.clone())
                        .route("/mcp", web::post().to(post))
                        .route("/mcp", web::delete().to(delete))
                };
                let server = HttpServer::new(app).workers(1).bind(("127.0.0.1", 0)).unwrap();
                said.send(format!("http://{}/mcp", server.addrs()[0])).unwrap();
                server.run().await.unwrap();
            });
        });
        saying.recv().unwrap()
    }
}

async fn post(known: web::Data<Known>, body: web::Json<Value>) -> HttpResponse {
    let (id, method) = (&body["id"], body["method"].as_str().unwrap());
    let result = match method {
        "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": {} }),
        "notifications/initialized" => return HttpResponse::Accepted().finish(),
        "tools/call" => {
            let call = known.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if call == known.stalls_at {
                std::thread::sleep(known.stall);
            }
            if known.refuses > 0 && call.is_multiple_of(known.refuses) {
                let error = json!({ "code": -32603, "message": "refused" });
                return HttpResponse::Ok()
                    .json(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            }
            json!({ "content": [{ "type": "text", "text": "yes" }] })
        }
        other => panic!("unexpected request {other}"),
    };
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": result });
    HttpResponse::Ok().insert_header(("Mcp-Session-Id", "one")).json(answer)
}

async fn delete(known: web::Data<Known>) -> HttpResponse {
    known.ended.fetch_add(1, Ordering::Relaxed);
    HttpResponse::Ok().finish()
}

fn loadtest(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    // The program under test of the other tests, if the test command has built it.
    if let Some(programs) = std::env::var_os("ROUNDHOUSE_PROGRAMS") {
        command.env("ROUNDHOUSE_BIN", Path::new(&programs).join("roundhouse"));
    }
    command.args(arguments).output().unwrap()
}

/// Runs the scenario `calls` and returns its figures.
fn calls(url: &str, arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let ran = loadtest(&[&["run", "calls", url, "-o", output], arguments].concat());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    report(folder.path())["runs"][0].clone()
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap()
}

#[test]
fn it_counts_what_the_server_was_asked() {
    let known = Arc::new(Known::default());
    let found = calls(&known.serve(), &["--secs", "0.5", "-c", "3"]);
    assert_eq!(found["done"], known.calls.load(Ordering::Relaxed));
    assert_eq!(found["failed"], 0);
    assert!(found["done"].as_u64().unwrap() > 10, "{found}");
    assert_eq!(known.ended.load(Ordering::Relaxed), 3, "each connection ends its session");
}

#[test]
fn an_error_is_no_call_that_was_done() {
    let known = Arc::new(Known { refuses: 3, ..Known::default() });
    let found = calls(&known.serve(), &["--secs", "0.3", "-c", "1"]);
    let asked = known.calls.load(Ordering::Relaxed);
    assert_eq!(found["failed"], asked / 3);
    assert_eq!(found["done"], asked - asked / 3);
}

#[test]
fn an_open_loop_shows_a_stall_to_all_that_was_due_meanwhile() {
    let stall = Duration::from_millis(600);
    let known = Arc::new(Known { stalls_at: 25, stall, ..Known::default() });
    // Few calls a second: a busy machine has to be done with those of the stall soon.
    let found = calls(&known.serve(), &["--secs", "3", "-c", "4", "--rate", "50"]);
    let micros = |name: &str| found["latency"][name].as_u64().unwrap();
    assert!(micros("max") >= 590_000, "{found}");
    // 30 of 150 calls were due during the stall. In a closed loop, only the calls of the four
    // connections would be slow.
    assert!(micros("p90") >= 200_000, "{found}");
    assert!(micros("p50") < 200_000, "{found}");
    // Every call that was due is counted.
    assert_eq!(found["done"], 150);
}

#[test]
fn what_is_wrong_with_a_target_is_said() {
    let failed = |arguments: &[&str]| {
        let ran = loadtest(arguments);
        assert!(!ran.status.success());
        String::from_utf8(ran.stderr).unwrap()
    };
    let nobody = failed(&["run", "calls", "http://127.0.0.1:9/mcp"]);
    assert!(nobody.contains("127.0.0.1:9"), "{nobody}");
    let known = Arc::new(Known::default());
    let wrong = known.serve().replace("/mcp", "/elsewhere");
    let elsewhere = failed(&["run", "calls", &wrong]);
    assert!(elsewhere.contains("`initialize` was answered 404"), "{elsewhere}");
    let unknown = failed(&["run", "calls", "nonsense"]);
    assert!(unknown.contains("nonsense") && unknown.contains("handler"), "{unknown}");
    let many = failed(&["run", "progress", &known.serve(), "--events", "0"]);
    assert!(many.contains("--events"), "{many}");
}

#[test]
fn everything_runs_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let ran = loadtest(&["all", "--smoke", "-o", output]);
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{told}");
    let report = report(folder.path());
    let runs = report["runs"].as_array().unwrap();
    let ran = |scenario: &str| -> Vec<&Value> {
        runs.iter().filter(|run| run["scenario"] == scenario).collect()
    };
    for scenario in ["calls", "calls-at-a-rate", "churn", "progress", "progress-apart"] {
        let of = ran(scenario);
        assert!(of.len() >= 5, "{scenario}: {told}");
        for run in of {
            assert_eq!(run["failed"], 0, "{run}");
            assert!(run["done"].as_u64().unwrap() > 0, "{run}");
            assert!(run["cpu_micros"].as_f64().unwrap() > 0.0, "{run}");
        }
    }
    for (scenario, figure) in [("hold", "held"), ("resume", "all_live_secs")] {
        let of = ran(scenario);
        assert!(of.len() >= 2, "{scenario}: {told}");
        for run in of {
            assert_eq!(run["done"], 20, "{run}");
            assert!(run["more"][figure].as_f64().unwrap() > 0.0, "{run}");
        }
    }
    assert_eq!(ran("resume")[0]["more"]["events_lost"], 0.0);
    assert_eq!(ran("tenants").len(), 1, "{told}");
    let chaos = ran("chaos");
    assert_eq!(chaos.len(), 1, "{told}");
    assert!(chaos[0]["more"]["resumes"].as_f64().unwrap() > 0.0, "{}", chaos[0]);
    assert_eq!(chaos[0]["more"]["events_lost"], 0.0, "{}", chaos[0]);
    assert!(report["compared"].as_array().unwrap().len() > 10);
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));
    assert!(folder.path().join("calls-latency.svg").is_file());
}

/// Each kind of backend and each flood on one node, and one of them on three.
#[test]
fn each_flood_of_a_tenant_runs_beside_quiet_tenants() {
    check_floods(&["--nodes", "1", "--kind", "http"], 9);
    check_floods(&["--nodes", "3", "--kind", "http", "--flood", "lists"], 1);
}

#[test]
fn long_each_flood_runs_for_each_kind_of_backend() {
    check_floods(&["--nodes", "1"], 31);
}

/// So many floods are judged.
fn check_floods(arguments: &[&str], floods: usize) {
    let ran = loadtest(&[&["tenants", "--smoke"], arguments].concat());
    let told = String::from_utf8_lossy(&ran.stdout);
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{told}{complaint}");
    let judged = |line: &&str| line.ends_with("  ok") || line.ends_with("  OVER");
    assert_eq!(told.lines().filter(judged).count(), floods, "{told}");
}

/// Each node on the `Handler` trait whose cost is compared with the plain one answers calls.
#[test]
fn every_node_that_is_compared_answers_calls() {
    let names =
        ["handler-keys", "handler-oauth", "handler-limits", "handler-audit", "handler-traces"];
    for name in names {
        let found = calls(name, &["--secs", "0.1", "-c", "2"]);
        assert_eq!(found["failed"], 0, "{found}");
        assert!(found["done"].as_u64().unwrap() > 0, "{found}");
    }
}
