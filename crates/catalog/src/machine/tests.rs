use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::MemberSettings;

mod carried;
mod changes;
mod failures;
mod hostile;
mod kept;
mod pins;

/// A machine, and what it has sent.
struct Bench {
    machine: Machine,
    effects: Vec<Effect>,
    now: u64,
    next_id: i64,
}

/// What a server offers in tests.
const CAPABILITIES: &str =
    r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{}}"#;

fn parse(value: &Value) -> Message {
    Message::parse(Bytes::from(value.to_string())).unwrap()
}

fn json_of(message: &Message) -> Value {
    serde_json::from_slice(message.raw()).unwrap()
}

impl Bench {
    /// A machine of servers with these names, which are being started.
    fn new(names: &[&str]) -> Self {
        let plain = MemberSettings::default();
        let members = Members::new(names.iter().map(|name| (*name, &plain))).unwrap();
        let setup = Setup { name: "acme".into(), members, start_ms: 60_000 };
        let pins = vec![Pinned::default(); names.len()].into();
        let mut effects = Vec::new();
        let machine = Machine::new(Arc::new(setup), pins, 0, &mut effects);
        Self { machine, effects, now: 0, next_id: 0 }
    }

    /// A machine whose servers have answered `initialize`, as the client knows.
    fn ready(names: &[&str]) -> Self {
        let mut bench = Self::new(names);
        bench.initialize();
        for child in 0..names.len() {
            bench.start(child);
        }
        bench.notify("notifications/initialized", json!({}));
        bench.effects.clear();
        bench
    }

    fn step(&mut self, event: Event) {
        self.machine.step(self.now, event, &mut self.effects);
    }

    fn session(&mut self, message: &Value) {
        self.step(Event::Session(parse(message)));
    }

    fn request(&mut self, method: &str, params: Value) -> i64 {
        self.next_id += 1;
        let id = self.next_id;
        self.session(&json!({"jsonrpc":"2.0","id":id,"method":method,"params":params}));
        id
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.session(&json!({"jsonrpc":"2.0","method":method,"params":params}));
    }

    fn server(&mut self, child: usize, message: &Value) {
        self.step(Event::ChildMessage { child, message: parse(message), about: None });
    }

    fn initialize(&mut self) -> i64 {
        let info = json!({"name":"c","version":"1"});
        let params = json!({"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":info});
        self.request("initialize", params)
    }

    /// The server's link is up, and it answers `initialize`.
    fn start(&mut self, child: usize) {
        self.step(Event::ChildUp(child));
        let (_, request) = self.sent(child, "initialize").expect("initialize is sent");
        let result = json!({"protocolVersion":"2025-06-18","serverInfo":{"name":"s","version":"1"},
            "capabilities": serde_json::from_str::<Value>(CAPABILITIES).unwrap(),
            "instructions": format!("use {child}")});
        self.server(child, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
    }

    /// Takes the first message with this method that a server got.
    fn sent(&mut self, child: usize, method: &str) -> Option<(usize, Value)> {
        let is_it = |effect: &Effect| match effect {
            Effect::ToChild(to, message) => *to == child && json_of(message)["method"] == method,
            _ => false,
        };
        let at = self.effects.iter().position(is_it)?;
        match self.effects.remove(at) {
            Effect::ToChild(child, message) => Some((child, json_of(&message))),
            _ => None,
        }
    }

    /// Takes all messages that the session got.
    fn told(&mut self) -> Vec<Value> {
        let mut told = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::ToSession { message, .. } => {
                told.push(json_of(message));
                false
            }
            _ => true,
        });
        told
    }

    fn reports(&self) -> Vec<&Report> {
        let reports = self.effects.iter().map(|effect| match effect {
            Effect::Report(report) => Some(report),
            _ => None,
        });
        reports.flatten().collect()
    }

    /// The server answers a request for its tools.
    fn send_tools(&mut self, child: usize, tools: &[&str], next: Option<&str>) {
        let (_, request) = self.sent(child, "tools/list").expect("the tools are read");
        let tools: Vec<_> = tools.iter().map(|name| json!({ "name": name })).collect();
        let result = json!({ "tools": tools, "nextCursor": next });
        self.server(child, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
    }
}

fn tool_names(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[test]
fn initialize_waits_for_all_servers_and_joins_what_they_offer() {
    let mut bench = Bench::new(&["a", "b"]);
    let id = bench.initialize();
    bench.start(0);
    assert!(bench.told().is_empty());
    bench.start(1);
    let told = bench.told();
    assert_eq!(told[0]["id"], id);
    let result = &told[0]["result"];
    assert_eq!(result["protocolVersion"], "2025-11-25");
    let expected = json!({"tools":{"listChanged":true},
        "resources":{"listChanged":true,"subscribe":true},"logging":{}});
    assert_eq!(result["capabilities"], expected);
    assert_eq!(result["instructions"], "# a\n\nuse 0\n\n# b\n\nuse 1");
}

#[test]
fn a_server_that_hangs_delays_initialize_for_a_bounded_time_and_comes_later() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.initialize();
    bench.start(0);
    assert_eq!(bench.machine.deadline(), Some(START_WAIT_MS));
    bench.now = START_WAIT_MS;
    bench.step(Event::Time);
    let told = bench.told();
    assert!(told[0]["result"]["capabilities"]["prompts"].is_object(), "it may have prompts");
    // A call of its tools waits for its first start.
    let call = bench.request("tools/call", json!({"name":"b__x"}));
    assert!(bench.told().is_empty());
    bench.start(1);
    let told = bench.told();
    assert!(told.iter().any(|message| message["method"] == "notifications/tools/list_changed"));
    let (_, sent) = bench.sent(1, "tools/call").unwrap();
    assert_eq!((&sent["id"], &sent["params"]["name"]), (&json!(call), &json!("x")));
}

#[test]
fn if_no_server_starts_initialize_fails_with_the_reasons() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.initialize();
    for child in 0..2 {
        bench.step(Event::ChildDown { child, reason: "it exited".to_owned() });
    }
    let told = bench.told();
    let text = told[0]["error"]["message"].as_str().unwrap();
    assert!(text.contains("`a`: it exited; `b`: it exited"), "{text}");
}

// holds: PAG-04
#[test]
fn a_list_is_merged_with_prefixes_and_then_comes_from_memory() {
    let mut bench = Bench::ready(&["a", "b"]);
    let id = bench.request("tools/list", json!({}));
    bench.send_tools(0, &["x"], Some("2"));
    bench.send_tools(1, &["x", &"y".repeat(62)], None);
    assert!(bench.told().is_empty());
    bench.send_tools(0, &["z", "x"], None);
    let told = bench.told();
    assert_eq!((&told[0]["id"], tool_names(&told[0])), (&json!(id), vec!["a__x", "a__z", "b__x"]));
    let left_out = |child, name: &str, why| Report::LeftOut {
        child,
        listed: Listed::Tool,
        name: name.into(),
        why,
    };
    let reports = bench.reports();
    assert!(reports.contains(&&left_out(0, "x", LeftOut::Collides)));
    assert!(reports.contains(&&left_out(1, &"y".repeat(62), LeftOut::TooLong)));
    bench.effects.clear();
    bench.request("tools/list", json!({}));
    assert_eq!(tool_names(&bench.told()[0]).len(), 3);
    assert!(bench.effects.is_empty(), "no server is asked");
    // A change has only that server's list read again.
    bench.server(1, &json!({"jsonrpc":"2.0","method":"notifications/tools/list_changed"}));
    assert_eq!(bench.told()[0]["method"], "notifications/tools/list_changed");
    bench.request("tools/list", json!({}));
    assert!(bench.sent(0, "tools/list").is_none());
    bench.send_tools(1, &["n"], None);
    assert_eq!(tool_names(&bench.told()[0]), ["a__x", "a__z", "b__n"]);
}

#[test]
fn a_server_that_sends_pages_without_end_or_none_hurts_only_itself() {
    let mut bench = Bench::ready(&["a", "b", "c"]);
    bench.request("tools/list", json!({}));
    bench.send_tools(0, &["x"], None);
    for page in 0.. {
        if bench.effects.iter().all(|e| !matches!(e, Effect::ToChild(1, _))) {
            assert_eq!(page, crate::list::PAGES_MAX);
            break;
        }
        bench.send_tools(1, &[&format!("t{page}")], Some("again"));
    }
    assert!(bench.told().is_empty(), "the third server has time");
    bench.now = LIST_MS;
    assert_eq!(bench.machine.deadline(), Some(LIST_MS));
    bench.step(Event::Time);
    let told = bench.told();
    assert_eq!(tool_names(&told[0]).len(), 65);
    assert!(bench.sent(2, "notifications/cancelled").is_some());
    assert!(bench.reports().contains(&&Report::NoList { child: 2, listed: Listed::Tool }));
    // It is not asked again at once.
    bench.request("tools/list", json!({}));
    assert_eq!(bench.told().len(), 1);
}

#[test]
fn a_flood_of_changes_reaches_the_client_once() {
    let mut bench = Bench::ready(&["a", "b"]);
    for _ in 0..1_000 {
        bench.now += 5;
        bench.server(0, &json!({"jsonrpc":"2.0","method":"notifications/tools/list_changed"}));
    }
    assert_eq!(bench.told().len(), 1);
}

#[test]
fn a_response_counts_only_from_the_server_that_has_the_request() {
    let mut bench = Bench::ready(&["a", "b"]);
    let id = bench.request("tools/call", json!({"name":"a__x"}));
    let answer = json!({"jsonrpc":"2.0","id":id,"result":{}});
    bench.server(1, &answer);
    bench.server(0, &json!({"jsonrpc":"2.0","id":99,"result":{}}));
    assert!(bench.told().is_empty());
    assert_eq!(bench.reports().len(), 2);
    bench.server(0, &answer);
    assert_eq!(bench.told(), std::slice::from_ref(&answer));
    bench.server(0, &answer);
    assert!(bench.told().is_empty(), "a second one");
}

#[test]
fn requests_of_servers_with_one_id_are_told_apart() {
    let mut bench = Bench::ready(&["a", "b"]);
    let ask =
        json!({"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"m"}});
    bench.server(0, &ask);
    bench.server(1, &ask);
    let told = bench.told();
    assert_ne!(told[0]["id"], told[1]["id"]);
    let answer = |id: &Value| json!({"jsonrpc":"2.0","id":id,"result":{"action":"accept"}});
    bench.session(&answer(&told[1]["id"]));
    bench.session(&answer(&told[1]["id"]));
    let to: Vec<_> = bench.effects.drain(..).collect();
    let [Effect::ToChild(1, message)] = &to[..] else { panic!("{} effects", to.len()) };
    assert_eq!(json_of(message)["id"], 1);
    let withdrawn =
        json!({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}});
    bench.server(1, &withdrawn);
    assert!(bench.told().is_empty(), "it is answered");
    bench.server(0, &withdrawn);
    assert_eq!(bench.told()[0]["params"]["requestId"], told[0]["id"]);
}

#[test]
fn a_server_has_a_bounded_number_of_requests_and_the_others_are_not_concerned() {
    let mut bench = Bench::ready(&["a", "b"]);
    for id in 0..100 {
        bench.server(0, &json!({"jsonrpc":"2.0","id":id,"method":"roots/list"}));
    }
    assert_eq!(bench.told().len(), 64);
    bench.server(1, &json!({"jsonrpc":"2.0","id":1,"method":"roots/list"}));
    assert_eq!(bench.told().len(), 1);
}

#[test]
fn a_server_that_ends_in_mid_call_fails_its_calls_only() {
    let mut bench = Bench::ready(&["a", "b"]);
    bench.request("tools/list", json!({}));
    bench.send_tools(0, &["x"], None);
    bench.send_tools(1, &["x"], None);
    bench.told();
    let one = bench.request("tools/call", json!({"name":"a__x"}));
    let other = bench.request("tools/call", json!({"name":"b__x"}));
    bench.server(0, &json!({"jsonrpc":"2.0","id":"q","method":"roots/list"}));
    bench.told();
    bench.step(Event::ChildDown { child: 0, reason: "it exited".to_owned() });
    let told = bench.told();
    let methods: Vec<_> = told.iter().filter_map(|message| message["method"].as_str()).collect();
    assert_eq!(told[0]["id"], one);
    assert!(told[0]["error"]["message"].as_str().unwrap().contains("`a` ended"));
    assert!(methods.contains(&"notifications/cancelled"), "{methods:?}");
    assert!(methods.contains(&"notifications/tools/list_changed"), "{methods:?}");
    bench.server(1, &json!({"jsonrpc":"2.0","id":other,"result":{}}));
    assert_eq!(bench.told()[0]["id"], other);
    bench.request("tools/list", json!({}));
    assert_eq!(tool_names(&bench.told()[0]), ["b__x"]);
    bench.request("tools/call", json!({"name":"a__x"}));
    let refused = &bench.told()[0]["error"]["message"];
    assert_eq!(refused, "the server `a` is not available: it exited; try again later");
    // It is started again, and the client gets a notification.
    bench.effects.clear();
    bench.now = bench.machine.deadline().unwrap();
    bench.step(Event::Time);
    assert!(matches!(bench.effects[..], [Effect::Open(0)]));
    bench.start(0);
    let told = bench.told();
    assert!(told.iter().any(|message| message["method"] == "notifications/tools/list_changed"));
    assert!(bench.sent(0, "notifications/initialized").is_some());
}

#[test]
fn progress_and_updates_count_only_from_the_server_that_they_are_of() {
    let mut bench = Bench::ready(&["a", "b"]);
    bench.request("tools/call", json!({"name":"a__x","_meta":{"progressToken":"t"}}));
    let progress = json!({"jsonrpc":"2.0","method":"notifications/progress",
        "params":{"progressToken":"t","progress":1}});
    bench.server(1, &progress);
    assert!(bench.told().is_empty());
    bench.server(0, &progress);
    assert_eq!(bench.told(), [progress]);
    let logged = json!({"jsonrpc":"2.0","method":"notifications/message",
        "params":{"level":"info","data":"d"}});
    bench.server(0, &logged);
    assert_eq!(bench.told()[0]["params"]["logger"], "a");
}

#[test]
fn a_resource_is_read_of_the_server_that_lists_it() {
    let mut bench = Bench::ready(&["a", "b"]);
    let read =
        |bench: &mut Bench, uri: &str| bench.request("resources/read", json!({ "uri": uri }));
    read(&mut bench, "x:/b");
    for child in 0..2 {
        let lists = [
            (
                "resources/list",
                json!({"resources":[{"uri":(["x:/a","x:/b"][child]),"name":"n"},
                {"uri":"x:/both","name":"n"}]}),
            ),
            (
                "resources/templates/list",
                json!({"resourceTemplates":[
                {"uriTemplate":(["x:/{id}","x:/deep/{id}"][child]),"name":"n"}]}),
            ),
            (
                "tools/list",
                json!({"tools":[{"name":"t",
                "_meta":{"ui":{"resourceUri":(["ui://a","ui://b"][child])}}}]}),
            ),
        ];
        for (method, result) in lists {
            let (_, request) = bench.sent(child, method).unwrap();
            bench.server(child, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
        }
    }
    assert!(bench.sent(1, "resources/read").is_some());
    for (uri, child) in
        [("x:/a", 0), ("x:/both", 0), ("x:/7", 0), ("x:/deep/7", 1), ("ui://b", 1), ("ui://a", 0)]
    {
        read(&mut bench, uri);
        assert!(bench.sent(child, "resources/read").is_some(), "{uri}");
    }
    read(&mut bench, "y:/nothing");
    assert_eq!(bench.told().len(), 1);
    bench.effects.clear();
    bench.request("resources/list", json!({}));
    let told = bench.told();
    let uris: Vec<_> = told[0]["result"]["resources"].as_array().unwrap().iter().collect();
    assert_eq!(uris.len(), 3, "{uris:?}");
    assert!(bench.reports().contains(&&Report::Hidden { child: 1, uri: "x:/both".into() }));
    // Only the server with the subscription may report updates.
    let subscribe = |bench: &mut Bench, answer: Value| {
        bench.request("resources/subscribe", json!({"uri":"x:/b"}));
        let (_, request) = bench.sent(1, "resources/subscribe").unwrap();
        let mut response = json!({"jsonrpc":"2.0","id":request["id"]});
        response.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        bench.server(1, &response);
        assert_eq!(bench.told().len(), 1);
        bench.effects.clear();
    };
    let updated = json!({"jsonrpc":"2.0","method":"notifications/resources/updated",
        "params":{"uri":"x:/b"}});
    subscribe(&mut bench, json!({"error":{"code":-32000,"message":"no"}}));
    bench.server(1, &updated);
    assert!(bench.told().is_empty(), "a refused subscription is none");
    subscribe(&mut bench, json!({"result":{}}));
    bench.server(0, &updated);
    assert!(bench.told().is_empty());
    bench.server(1, &updated);
    let mut of_a_part = updated;
    of_a_part["params"]["uri"] = json!("x:/b/part");
    bench.server(1, &of_a_part);
    assert_eq!(bench.told().len(), 2);
}

#[test]
fn a_server_whose_lists_change_without_end_delays_no_resource_of_another() {
    let mut bench = Bench::ready(&["a", "b"]);
    bench.request("resources/read", json!({"uri":"x:/b"}));
    for child in 0..2 {
        for (method, member) in [
            ("resources/list", "resources"),
            ("resources/templates/list", "resourceTemplates"),
            ("tools/list", "tools"),
        ] {
            let (_, request) = bench.sent(child, method).unwrap();
            let entries = if child == 1 {
                json!([{"uri":"x:/b","name":"x","uriTemplate":"q:"}])
            } else {
                json!([])
            };
            bench.server(
                child,
                &json!({"jsonrpc":"2.0","id":request["id"],"result":{ member: entries }}),
            );
            bench.server(
                0,
                &json!({"jsonrpc":"2.0","method":"notifications/resources/list_changed"}),
            );
        }
    }
    assert!(bench.sent(1, "resources/read").is_some());
}

#[test]
fn a_level_is_set_at_all_servers_also_at_those_that_come_later() {
    let mut bench = Bench::ready(&["a", "b"]);
    bench.request("logging/setLevel", json!({"level":"error"}));
    assert_eq!(bench.told()[0]["result"], json!({}));
    assert!(bench.sent(0, "logging/setLevel").is_some());
    assert!(bench.sent(1, "logging/setLevel").is_some());
    bench.step(Event::ChildDown { child: 1, reason: "x".to_owned() });
    bench.now = 5_000;
    bench.step(Event::Time);
    bench.start(1);
    assert_eq!(bench.sent(1, "logging/setLevel").unwrap().1["params"]["level"], "error");
}

#[test]
fn a_cancelled_request_is_cancelled_at_its_server_wherever_it_is() {
    let mut bench = Bench::ready(&["a", "b"]);
    let id = bench.request("tools/call", json!({"name":"b__x"}));
    bench.notify("notifications/cancelled", json!({ "requestId": id }));
    assert!(bench.sent(1, "notifications/cancelled").is_some());
    assert!(bench.sent(0, "notifications/cancelled").is_none());
    bench.server(1, &json!({"jsonrpc":"2.0","id":id,"result":{}}));
    assert!(bench.told().is_empty(), "too late");
    let listing = bench.request("tools/list", json!({}));
    bench.notify("notifications/cancelled", json!({ "requestId": listing }));
    bench.send_tools(0, &[], None);
    bench.send_tools(1, &[], None);
    assert!(bench.told().is_empty());
}

/// Messages that a server could send at any time.
fn any_message() -> impl Strategy<Value = Value> {
    let id = prop_oneof![
        (1..6_i64).prop_map(|id| json!(id)),
        (1..30_u64).prop_map(|id| json!(format!("catalog-{id}"))),
        ("(initialize|tools/list|resources/list|x)", 0..40_u64)
            .prop_map(|(method, number)| json!(format!("{OWN_PREFIX}{method}:{number}"))),
    ];
    let entry = prop_oneof![
        "[a-z]{0,3}".prop_map(|name| json!({ "name": name, "uri": format!("x:/{name}") })),
        Just(json!(7)),
        Just(json!({})),
    ];
    let list = proptest::collection::vec(entry, 0..4);
    let result = (list, "(tools|resources|resourceTemplates|x)", proptest::option::of("[a-z]"))
        .prop_map(|(list, member, next)| json!({ member: list, "nextCursor": next }));
    let method = prop_oneof![
        Just("notifications/tools/list_changed"),
        Just("notifications/cancelled"),
        Just("notifications/progress"),
        Just("notifications/resources/updated"),
        Just("notifications/message"),
        Just("notifications/other"),
    ];
    prop_oneof![
        (id.clone(), result)
            .prop_map(|(id, result)| json!({"jsonrpc":"2.0","id":id,"result":result})),
        (id.clone(), -32_700..0_i64).prop_map(
            |(id, code)| json!({"jsonrpc":"2.0","id":id,"error":{"code":code,"message":"m"}})
        ),
        id.clone().prop_map(|id| json!({"jsonrpc":"2.0","id":id,"method":"roots/list"})),
        (method, id).prop_map(|(method, id)| json!({"jsonrpc":"2.0","method":method,"params":{
            "requestId":id,"progressToken":id,"progress":1,"uri":"x:/a","level":"info"}})),
    ]
}

/// One thing that happens to a machine of two servers.
#[derive(Clone, Debug)]
enum Move {
    Server(usize, Value),
    Down(usize),
    Up(usize),
    Request(&'static str, Value),
    Wait(u64),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        8 => (0..2_usize, any_message()).prop_map(|(child, message)| Move::Server(child, message)),
        1 => (0..2_usize).prop_map(Move::Down),
        1 => (0..2_usize).prop_map(Move::Up),
        2 => Just(Move::Request("tools/list", json!({}))),
        2 => Just(Move::Request("tools/call", json!({"name":"a__x","_meta":{"progressToken":1}}))),
        1 => Just(Move::Request("resources/read", json!({"uri":"x:/a"}))),
        1 => (0..15_000_u64).prop_map(Move::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// For any messages of servers, no request has two responses, each response belongs to a request, and
    /// after the longest wait no list request is without its response.
    #[test]
    fn each_request_has_at_most_one_response(moves in proptest::collection::vec(any_move(), 1..80)) {
        let mut bench = Bench::ready(&["a", "b"]);
        let mut open = VecDeque::new();
        let mut told = Vec::new();
        for step in moves {
            match step {
                Move::Server(child, message) => bench.server(child, &message),
                Move::Down(child) => bench.step(Event::ChildDown { child, reason: "x".to_owned() }),
                Move::Up(child) => bench.step(Event::ChildUp(child)),
                Move::Request(method, params) => open.push_back((bench.request(method, params), method)),
                Move::Wait(ms) => {
                    bench.now += ms;
                    bench.step(Event::Time);
                }
            }
            told.append(&mut bench.told());
            bench.effects.retain(|effect| matches!(effect, Effect::ToChild(..)));
        }
        // No timer that is due stays, and the lists end.
        for _ in 0..50 {
            let Some(deadline) = bench.machine.deadline() else { break };
            bench.now = bench.now.max(deadline);
            bench.step(Event::Time);
            bench.effects.retain(|effect| matches!(effect, Effect::ToSession { .. }));
        }
        told.append(&mut bench.told());
        for answer in told.iter().filter(|message| message.get("method").is_none()) {
            let at = open.iter().position(|(id, _)| answer["id"] == *id);
            prop_assert!(at.is_some(), "{answer} answers nothing");
            at.and_then(|at| open.remove(at));
        }
        let lists = open.iter().filter(|(_, method)| *method == "tools/list").count();
        prop_assert_eq!(lists, 0, "lists without an answer");
    }
}
