//! Which sessions a tenant has.

use super::*;

impl Scene<'_> {
    /// The tenant has exactly these sessions.
    #[track_caller]
    fn tenant_has(&self, sessions: &[&SessionId]) -> impl Future<Output = ()> {
        let mut sessions: Vec<SessionId> =
            sessions.iter().map(|&session| session.clone()).collect();
        let caller = std::panic::Location::caller();
        async move {
            let mut listed = self.store().sessions_of(&self.tenant, 100).await.expect("listed");
            listed.sort();
            sessions.sort();
            assert_eq!(listed, sessions, "listed at {caller}");
            let count = self.store().count_of(&self.tenant).await.expect("counted");
            assert_eq!(count, sessions.len(), "counted at {caller}");
        }
    }

    /// One more session of the same tenant.
    async fn another(&self) -> (SessionId, Owner) {
        let (session, owner) = (session(), first());
        self.store().create(&session, self.record(owner), LONG).await.expect("made");
        (session, owner)
    }
}

/// And no others.
pub async fn a_tenant_has_the_sessions_opened_at_its_endpoint(world: &dyn World) {
    let scene = Scene::new(world);
    scene.tenant_has(&[]).await;
    let (one, _) = scene.another().await;
    let (two, _) = scene.another().await;
    let (elsewhere, _) = Scene::owned(world).await;
    scene.tenant_has(&[&one, &two]).await;
    elsewhere.tenant_has(&[&elsewhere.session]).await;
}

/// A tenant may have more sessions than anybody wants to see.
pub async fn a_list_is_cut_at_its_bound(world: &dyn World) {
    let scene = Scene::new(world);
    for _ in 0..5 {
        scene.another().await;
    }
    let listed = world.store().sessions_of(&scene.tenant, 3).await.expect("listed");
    assert_eq!(listed.len(), 3);
    assert_eq!(world.store().count_of(&scene.tenant).await.expect("counted"), 5);
}

/// Whatever is retried, claimed or given up.
pub async fn a_session_in_other_hands_counts_once(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.create(scene.record(owner)).await.expect("yes again");
    scene.tenant_has(&[&scene.session]).await;
    let new = heir(owner);
    scene.claim(owner.token, new).await.expect("claimed");
    scene.release(new).await.expect("released");
    scene.tenant_has(&[&scene.session]).await;
}

/// They cost the tenant nothing any more.
pub async fn ended_and_expired_sessions_are_not_listed(world: &dyn World) {
    let scene = Scene::new(world);
    let (stays, _) = scene.another().await;
    let (ends, owner) = scene.another().await;
    world.store().end(&ends, owner.token, LONG).await.expect("ended");
    let (expires, record) = (session(), scene.record(first()));
    world.store().create(&expires, record, SHORT).await.expect("made");
    scene.tenant_has(&[&stays, &expires]).await;
    world.pass(MORE_THAN_SHORT).await;
    scene.tenant_has(&[&stays]).await;
}

/// A failover may forget that a tenant has a session, but not for long.
pub async fn sessions_written_anew_are_listed(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    for _ in 0..2 {
        scene.reassert(scene.record(owner), 1, 1, "").await.expect("taken");
        scene.tenant_has(&[&scene.session]).await;
    }
    let record = Record { standing: Standing::Ended, ..scene.record(owner) };
    scene.reassert(record, 1, 1, "").await.expect("taken");
    scene.tenant_has(&[]).await;
}
