//! Tenants whose backend is replaced while their sessions have links.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Script, Scripted, World, next, receive_all, text, wait_until};
use actors::{Caller, Care, Definition, Frame, ReplyEvent, ReplyStream, Settings};
use backends::{Backend, LinkEvent};
use cluster::Cluster;
use store::{Memory, Store};

fn reporting() -> Script {
    Script { reports_tools: true, ..Script::default() }
}

/// Gives the tenant another backend, which follows the same script.
fn replace(world: &World) {
    let backend: Arc<dyn Backend> = Arc::new(Scripted(Arc::clone(&world.script)));
    world.backends.replace([("acme".into(), backend)]);
}

async fn listening(world: &World, caller: &Caller) -> ReplyStream {
    let mut replies = world.handle.listen(caller, None);
    let event = next(&mut replies).await;
    assert!(matches!(event, Some(ReplyEvent::Open { .. })), "{event:?}");
    replies
}

/// The next message on a stream.
async fn message(replies: &mut ReplyStream) -> String {
    loop {
        match next(replies).await.expect("the stream ended") {
            ReplyEvent::Frame(Frame::Message { data, .. }) => return text(&data),
            ReplyEvent::Frame(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The server sends a message that belongs to no request.
async fn send_prompts_changed(world: &World) {
    let method = protocol::Method::PromptsListChanged;
    let message = protocol::Notification::new(method, None).into();
    let sender = world.script.senders.lock().unwrap().last().unwrap().clone();
    sender.send(LinkEvent::Message { message, about: None }).await.unwrap();
}

#[actix_rt::test]
async fn a_client_is_told_when_its_next_server_is_one_of_another_backend() {
    let world = World::with(Settings::default(), reporting());
    let caller = world.session().await;
    let mut stream = listening(&world, &caller).await;
    replace(&world);
    world.check_call(&caller, 1).await;
    assert_eq!(world.script.opened.load(Ordering::SeqCst), 1, "it keeps the server that runs");
    receive_all(world.call(&caller, 2, "die")).await;
    world.check_call(&caller, 3).await;
    assert_eq!(world.script.opened.load(Ordering::SeqCst), 2);
    let told = message(&mut stream).await;
    assert!(told.contains("notifications/tools/list_changed"), "{told}");
}

#[actix_rt::test]
async fn a_client_is_not_told_when_a_server_of_the_same_backend_is_started_again() {
    let world = World::with(Settings::default(), reporting());
    let caller = world.session().await;
    let mut stream = listening(&world, &caller).await;
    receive_all(world.call(&caller, 1, "die")).await;
    world.check_call(&caller, 2).await;
    assert_eq!(world.script.opened.load(Ordering::SeqCst), 2);
    send_prompts_changed(&world).await;
    let first = message(&mut stream).await;
    assert!(first.contains("notifications/prompts/list_changed"), "{first}");
}

#[actix_rt::test]
async fn an_idle_session_leaves_a_retired_server_and_its_next_call_gets_the_new_one() {
    let world = World::with(Settings::default(), reporting());
    let caller = world.session().await;
    let mut stream = listening(&world, &caller).await;
    replace(&world);
    let sender = world.script.senders.lock().unwrap()[0].clone();
    sender.send(LinkEvent::Retired).await.unwrap();
    wait_until(|| world.script.live.load(Ordering::SeqCst) == 0).await;
    world.check_call(&caller, 1).await;
    let told = message(&mut stream).await;
    assert!(told.contains("notifications/tools/list_changed"), "{told}");
}

#[actix_rt::test]
async fn the_sessions_of_a_tenant_without_a_backend_keep_the_one_that_they_have() {
    let world = World::with(Settings::default(), reporting());
    let caller = world.session().await;
    world.backends.replace([]);
    receive_all(world.call(&caller, 1, "die")).await;
    world.check_call(&caller, 2).await;
}

/// A session leaves memory, and the settings have another server when it is restored.
#[actix_rt::test]
async fn a_restored_session_tells_its_client_of_a_server_with_another_definition() {
    for (definition, is_told) in [(1, false), (2, true)] {
        let care = |number| Care {
            idle_stop_secs: Some(1),
            definition: Some(Definition(number)),
            ..Care::default()
        };
        let mut settings = Settings::default();
        settings.session.sleep_after_secs = 1;
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let membership = Cluster::alone(Arc::clone(&store));
        let world = World::member(settings, care(1), Arc::new(reporting()), store, membership);
        let caller = world.session().await;
        wait_until(|| world.handle.sessions() == 0).await;
        world.handle.replace_cares([("acme".into(), care(definition))].into());
        world.check_call(&caller, 1).await;
        let mut stream = listening(&world, &caller).await;
        send_prompts_changed(&world).await;
        let first = message(&mut stream).await;
        let is_of_tools = first.contains("notifications/tools/list_changed");
        assert_eq!(is_of_tools, is_told, "{definition}: {first}");
    }
}
