//! What operators see of a cluster, and how they end its sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::nodes::{Common, Node};
use crate::support::{World, receive_all, wait_until};
use actors::{
    Answer, Caller, EndProblem, Listing, Overview, ReplyEvent, SessionQuery, Settings, ShortId,
    Target,
};
use bytes::Bytes;
use cluster::{Cluster, PeerCallHandler, Replies, Versions};
use conversation::Refusal;
use store::{Memory, Store};

async fn all(overview: &Overview) -> Listing {
    overview.sessions(SessionQuery { tenant: None, after: None, limit: 100 }).await
}

async fn is_unknown(world: &World, caller: &Caller) -> bool {
    let events = receive_all(world.handle.listen(caller, None)).await;
    matches!(events[..], [ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession))])
}

#[actix_rt::test]
async fn digits_that_begin_the_ids_of_sessions_at_two_nodes_end_neither() {
    let [one, other]: [Node; 2] = Common::default().nodes().await;
    let callers = [one.session_of("2025-11-25").await, other.session_of("2025-11-25").await];
    let overview = one.handle.overview();
    let listing = all(&overview).await;
    assert_eq!((listing.sessions.len(), listing.next, listing.unasked.len()), (2, None, 0));
    let every = Target::Short(0..=u64::MAX);
    let ended = overview.end_session(every.clone(), None).await;
    assert_eq!(ended, Err(EndProblem::Ambiguous));
    assert_eq!(all(&overview).await.sessions.len(), 2);
    let ended = overview.end_session(every.clone(), Some("other".into())).await;
    assert_eq!(ended, Err(EndProblem::Unknown));

    let id = ShortId::of(&callers[1].session);
    let target = Target::parse(&id.to_string()).unwrap();
    let ended = overview.end_session(target, Some(Arc::clone(&callers[1].tenant.name))).await;
    assert_eq!(ended.unwrap().id, id);
    assert!(is_unknown(&one, &callers[1]).await && is_unknown(&other, &callers[1]).await);
    // Now the digits name one session.
    let ended = overview.end_session(every, None).await.unwrap();
    assert_eq!(ended.id, ShortId::of(&callers[0].session));
    assert!(is_unknown(&one, &callers[0]).await && is_unknown(&other, &callers[0]).await);
}

/// Counts the calls that it gets.
#[derive(Default)]
struct Counting(AtomicUsize);

impl PeerCallHandler for Counting {
    fn handle_call(&self, _: Bytes) -> Option<Box<dyn Replies>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        None
    }
}

fn peers() -> cluster::Settings {
    cluster::Settings {
        listen: "127.0.0.1:0".into(),
        secret: "no secret, only a test of these nodes".into(),
        ..cluster::Settings::default()
    }
}

#[actix_rt::test]
async fn a_peer_of_an_older_program_is_named_and_gets_no_call_that_it_cannot_read() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let calls = Arc::new(Counting::default());
    let versions = Versions { oldest: 2, newest: 3 };
    let older = Cluster::join(peers(), Arc::clone(&store), versions).await.unwrap();
    let older = older.serve(calls.clone());
    let world = World::joined(Settings::default(), store, peers()).await;
    wait_until(|| world.handle.cluster().reachable(older.incarnation()).is_some()).await;
    world.session().await;
    let overview = world.handle.overview();
    let listing = all(&overview).await;
    assert_eq!((listing.sessions.len(), listing.unasked.len()), (1, 1));
    assert!(listing.unasked[0].reason.contains("older program"), "{:?}", listing.unasked);
    let (nodes, unasked) = overview.nodes().await;
    assert_eq!((nodes.len(), unasked.len()), (2, 1));
    let ended = overview.end_session(Target::parse("0123456789abcdef").unwrap(), None).await;
    assert!(matches!(&ended, Err(EndProblem::Unasked(nodes)) if nodes.len() == 1), "{ended:?}");
    assert_eq!(calls.0.load(Ordering::SeqCst), 0);
}
