//! Changes of the settings, as a session with a catalog has them.

use std::sync::Mutex;

use backends::{Backend, EventSender, LinkLimits, ServerEnd};
use protocol::{Message, Method, Request, Response, SessionId};

use crate::{Catalog, MemberSettings, Members, Pinning};

use super::*;

const WELCOME: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"a","version":"1"}}"#;
const INTRODUCTION: &[u8] = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;

/// A server whose links are those that a test has.
#[derive(Default)]
struct Held(Mutex<Vec<ServerEnd>>);

impl Backend for Held {
    fn open(&self, _session: &SessionId) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        self.0.lock().unwrap().push(end);
        link
    }
}

/// The next event of the catalog's link, while its server answers what it is asked.
async fn next(link: &mut Link, server: &Held) -> LinkEvent {
    for _ in 0..250 {
        let event = tokio::time::timeout(Duration::from_millis(20), link.events.next()).await;
        if let Ok(event) = event {
            return event.expect("the link is there");
        }
        let Some(mut end) = server.0.lock().unwrap().pop() else { continue };
        let asked = tokio::time::timeout(Duration::from_millis(20), end.receive()).await;
        if let Ok(Some(Message::Request(request))) = asked {
            let response = Response::result(request.id, WELCOME.as_bytes());
            let message = Message::Response(response);
            end.send(LinkEvent::Message { message, about: None }).await.unwrap();
        }
        server.0.lock().unwrap().push(end);
    }
    panic!("no event came");
}

#[tokio::test]
async fn a_server_that_is_lost_after_a_change_of_the_settings_is_not_opened_as_it_was() {
    let (server, plain) = (Arc::new(Held::default()), MemberSettings::default());
    let members = Members::new([("a", &plain), ("b", &plain)]).unwrap();
    let pinning = Pinning::off(members.names().cloned());
    let other = Arc::new(Held::default());
    let both = [Arc::clone(&server) as Arc<dyn Backend>, Arc::clone(&other) as Arc<dyn Backend>];
    let catalog = Catalog::new("acme", members, both, Duration::from_millis(300), pinning);
    let mut link = catalog.open(&SessionId::parse("s").unwrap());
    let initialize = Request::new(1.into(), Method::Initialize, Some(INTRODUCTION));
    link.sender.send(Message::Request(initialize)).unwrap();
    assert!(matches!(next(&mut link, &server).await, LinkEvent::Up));
    for end in server.0.lock().unwrap().iter().chain(&*other.0.lock().unwrap()) {
        end.sender().try_send(LinkEvent::Up).unwrap();
    }
    while !matches!(next(&mut link, &server).await, LinkEvent::Message { .. }) {}

    catalog.retire();
    server.0.lock().unwrap().clear();
    // A lost server is opened again when the session uses the catalog.
    let list = Request::new(2.into(), Method::ToolsList, None);
    link.sender.send(Message::Request(list)).unwrap();
    while !matches!(next(&mut link, &server).await, LinkEvent::Down { .. }) {}
    assert!(server.0.lock().unwrap().is_empty(), "it was opened with the former settings");
}

/// A server that answers each request. Has the links that were opened.
#[derive(Default)]
struct Answering(Mutex<Vec<EventSender>>);

impl Backend for Answering {
    fn open(&self, _session: &SessionId) -> Link {
        let (link, mut end) = Link::pair(LinkLimits::default());
        self.0.lock().unwrap().push(end.sender());
        tokio::spawn(async move {
            end.send(LinkEvent::Up).await.unwrap();
            while let Some(message) = end.receive().await {
                let Message::Request(request) = message else { continue };
                let message = Message::Response(Response::result(request.id, WELCOME.as_bytes()));
                let _ = end.send(LinkEvent::Message { message, about: None }).await;
            }
        });
        link
    }
}

impl Answering {
    fn links(&self) -> Vec<EventSender> {
        self.0.lock().unwrap().clone()
    }
}

/// A catalog of the servers `a` and `b`.
fn catalog(servers: [&Arc<Answering>; 2]) -> Catalog {
    let plain = MemberSettings::default();
    let members = Members::new([("a", &plain), ("b", &plain)]).unwrap();
    let pinning = Pinning::off(members.names().cloned());
    let backends = servers.map(|server| Arc::clone(server) as Arc<dyn Backend>);
    Catalog::new("acme", members, backends, Duration::from_secs(10), pinning)
}

/// Polls the link, which stays up, until this is so.
async fn until(link: &mut Link, mut is_so: impl FnMut(Option<LinkEvent>) -> bool) {
    for _ in 0..1_000 {
        let event = tokio::time::timeout(Duration::from_millis(5), link.events.next()).await;
        let event = event.ok().map(|event| event.expect("the link is there"));
        assert!(!matches!(event, Some(LinkEvent::Down { .. } | LinkEvent::Retired)), "{event:?}");
        if is_so(event) {
            return;
        }
    }
    panic!("it did not come to that");
}

/// A session whose servers are ready.
async fn opened(catalog: &Catalog) -> Link {
    let mut link = catalog.open(&SessionId::parse("s").unwrap());
    let initialize = Request::new(1.into(), Method::Initialize, Some(INTRODUCTION));
    link.sender.send(Message::Request(initialize)).unwrap();
    until(&mut link, |event| matches!(event, Some(LinkEvent::Message { .. }))).await;
    link
}

#[tokio::test]
async fn a_server_whose_backend_was_replaced_is_opened_at_the_new_one_when_it_is_lost() {
    let [a, b, new_a, new_b] = std::array::from_fn(|_| Arc::new(Answering::default()));
    let former = catalog([&a, &b]);
    let mut link = opened(&former).await;
    let later = former.replacing(&["b".to_owned()].into(), &catalog([&new_a, &new_b]));
    former.retire();
    until(&mut link, |event| event.is_none()).await;
    assert!(!b.links()[0].is_closed(), "the session keeps it");

    b.links()[0].down("it is lost");
    until(&mut link, |_| new_b.links().len() == 1).await;
    assert_eq!((a.links().len(), b.links().len(), new_a.links().len()), (1, 1, 0));
    assert!(!a.links()[0].is_closed());
    // A new session has the new one at once.
    let other = opened(&later).await;
    assert_eq!((a.links().len(), b.links().len(), new_b.links().len()), (2, 1, 2));
    drop(other);
}

#[tokio::test]
async fn a_server_that_keeps_nothing_is_replaced_as_soon_as_it_is_idle() {
    let [a, b, new_b] = std::array::from_fn(|_| Arc::new(Answering::default()));
    let former = catalog([&a, &b]);
    let mut link = opened(&former).await;
    let _later = former.replacing(&["b".to_owned()].into(), &catalog([&a, &new_b]));
    assert!(b.links()[0].try_send(LinkEvent::Retired).unwrap().is_none());
    until(&mut link, |_| new_b.links().len() == 1 && b.links()[0].is_closed()).await;
    assert!(a.links().len() == 1 && !a.links()[0].is_closed());
}
