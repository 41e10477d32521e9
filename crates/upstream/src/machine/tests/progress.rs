//! Progress of requests that were sent in a session which another machine began.

use super::*;

// holds: PRG-04
#[test]
fn a_request_that_may_run_twice_has_a_progress_token_of_its_own() {
    let positions = [(None, saved::position(Some(&text("s1")), None, &text("g1")).unwrap())];
    let machine = Machine::carry_on(0xcd, &saved(), &positions).unwrap();
    let mut bench = Bench { machine, effects: Vec::new() };
    let (listening, _) = bench.send(message(INITIALIZE)).remove(0);
    bench.delivered();
    let call = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":"p"}}}"#;
    let (exchange, sent) = bench.send(message(call)).remove(0);
    let Verb::Request(raw) = sent.verb else { panic!("no request") };
    let Ok(Message::Request(sent)) = Message::parse(raw) else { panic!("no request") };
    assert_eq!(sent.progress_token().as_ref(), Some(&sent.id));

    let progress = |token: &str, progress: u8| {
        message(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{progress}}}}}"#
        ))
    };
    // The first run of the request goes on, and its progress comes on the stream of the session.
    bench.event(listening, event(vec![progress("\"p\"", 9)], Some("g2")));
    assert!(bench.delivered().is_empty());
    bench.event(exchange, event(vec![progress(&sent.id.to_json(), 1)], Some("e1")));
    let (delivered, about) = bench.delivered().remove(0);
    assert_eq!(about, Some(RequestId::from(9)));
    assert!(delivered.contains(r#""progressToken":"p","progress":1"#), "{delivered}");
    // Another machine knows the token from the position.
    let read = |effect: &Effect| match effect {
        Effect::Deliver { about: Some(about), position: Some(position), .. } => {
            Some((Some(about.clone()), position.clone()))
        }
        _ => None,
    };
    let position = bench.effects.iter().find_map(read).expect("a position");
    let machine = Machine::carry_on(0xce, &saved(), &[position]).unwrap();
    let mut bench = Bench { machine, effects: Vec::new() };
    let (resumed, _) = bench.send(message(INITIALIZE)).remove(1);
    bench.delivered();
    bench.event(resumed, event(vec![progress(&sent.id.to_json(), 2)], Some("e2")));
    assert!(bench.delivered()[0].0.contains(r#""progressToken":"p","progress":2"#));
}
