//! How operators find the sessions that no node has.

use std::collections::HashSet;

use super::*;
use crate::ScanCursor;

/// All sessions of the store, read in small pages.
async fn scanned(world: &dyn World) -> HashSet<SessionId> {
    let (mut found, mut from) = (HashSet::new(), ScanCursor::default());
    loop {
        let page = world.store().scan(from, 20).await.expect("a page");
        found.extend(page.sessions);
        match page.next {
            Some(next) => from = next,
            None => return found,
        }
    }
}

/// Whether a session has an owner, or has ended, is in its record.
pub async fn the_pages_of_a_scan_have_each_session_that_is_there_all_the_time(world: &dyn World) {
    let mut there = HashSet::new();
    for number in 0..40 {
        let (scene, owner) = Scene::owned(world).await;
        through(scene.append(owner, 1, 1, "a").await, 1);
        match number % 3 {
            0 => scene.release(owner).await.expect("released"),
            1 => scene.end(owner).await.expect("ended"),
            _ => {}
        }
        there.insert(scene.session);
    }
    let found = scanned(world).await;
    let missing: Vec<_> = there.difference(&found).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Clients choose the ids that they send, and a take-over creates no session.
pub async fn a_scan_names_sessions_as_they_were_created(world: &dyn World) {
    let odd = ["{", "}", "%", "nodes", "%nodes", "a}b{c%7D", "*[?]"];
    let name = |text: &str| SessionId::parse(&format!("{text}{:x}", random())).expect("an id");
    let sessions = odd.map(name);
    for session in &sessions {
        let scene = Scene { session: session.clone(), ..Scene::new(world) };
        scene.create(scene.record(first())).await.expect("created");
    }
    let found = scanned(world).await;
    assert!(sessions.iter().all(|session| found.contains(session)), "{found:?}");
}

/// Operators see no session that has expired.
pub async fn a_scan_names_no_session_that_is_gone(world: &dyn World) {
    let scene = Scene::new(world);
    let record = scene.record(first());
    world.store().create(&scene.session, record, SHORT).await.expect("created");
    world.pass(MORE_THAN_SHORT).await;
    assert!(!scanned(world).await.contains(&scene.session));
}
