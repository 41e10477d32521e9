use std::sync::atomic::AtomicU32;
use std::task::Wake;

use bytes::Bytes;
use protocol::Message;

use super::*;
use crate::Link;

fn message(length: usize) -> Message {
    let text =
        format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"a":"{}"}}}}"#, "a".repeat(length));
    Message::parse(Bytes::from(text)).unwrap()
}

fn message_event(length: usize) -> LinkEvent {
    LinkEvent::Message { message: message(length), about: None }
}

fn limits(messages_max: usize, bytes_max: usize) -> LinkLimits {
    LinkLimits { messages_max, bytes_max }
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn messages_of_the_session_arrive_in_order_and_uncopied() {
    let (link, mut end) = Link::pair(LinkLimits::default());
    let (first, second) = (message(1), message(2));
    link.sender.send(first.clone()).unwrap();
    link.sender.send(second.clone()).unwrap();
    let heard = end.receive().await.unwrap();
    assert_eq!(heard.raw().as_ptr(), first.raw().as_ptr());
    assert_eq!(end.receive().await, Some(second));
}

#[tokio::test]
async fn the_server_receives_the_end_after_all_messages() {
    let (link, mut end) = Link::pair(LinkLimits::default());
    link.sender.send(message(1)).unwrap();
    drop(link.sender);
    assert!(end.receive().await.is_some());
    assert_eq!(end.receive().await, None);
}

#[test]
fn sending_beyond_the_message_bound_fails_at_once() {
    let (link, _end) = Link::pair(limits(2, 1 << 20));
    link.sender.send(message(1)).unwrap();
    link.sender.send(message(1)).unwrap();
    assert_eq!(link.sender.send(message(1)), Err(SendError::Full));
}

#[tokio::test]
async fn bytes_are_bounded_but_one_large_message_always_passes() {
    let (link, mut end) = Link::pair(limits(256, 100));
    link.sender.send(message(1000)).unwrap();
    assert_eq!(link.sender.send(message(1)), Err(SendError::Full));
    end.receive().await.unwrap();
    link.sender.send(message(1)).unwrap();
}

#[test]
fn sending_to_a_dropped_server_end_fails() {
    let (link, end) = Link::pair(LinkLimits::default());
    drop(end);
    assert_eq!(link.sender.send(message(1)), Err(SendError::Down));
}

#[tokio::test]
async fn a_server_waits_on_a_full_queue_until_the_session_has_read() {
    let (mut link, end) = Link::pair(limits(1, 1 << 20));
    end.send(message_event(1)).await.unwrap();
    let mut waiting = pin!(end.send(message_event(2)));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    assert!(link.events.next().await.is_some());
    waiting.await.unwrap();
    assert!(link.events.next().await.is_some());
}

#[tokio::test]
async fn a_server_that_waits_for_room_gets_an_error_when_the_session_ends() {
    let (link, end) = Link::pair(limits(1, 1 << 20));
    end.send(message_event(1)).await.unwrap();
    let sender = end.sender();
    let mut waiting = pin!(sender.send(message_event(2)));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    drop(link.events);
    assert_eq!(waiting.await, Err(Gone));
    end.closed().await;
}

#[tokio::test]
async fn down_passes_a_full_queue_and_is_the_last_message() {
    let (mut link, end) = Link::pair(limits(1, 1 << 20));
    end.send(message_event(1)).await.unwrap();
    end.sender().down("it broke");
    assert_eq!(end.send(message_event(2)).await, Err(Gone));
    assert_eq!(link.sender.send(message(1)), Err(SendError::Down));
    assert!(matches!(link.events.next().await, Some(LinkEvent::Message { .. })));
    let down = link.events.next().await;
    assert!(matches!(down, Some(LinkEvent::Down { reason }) if reason == "it broke"));
    assert!(link.events.next().await.is_none());
}

#[tokio::test]
async fn a_server_end_that_is_dropped_without_an_event_is_down() {
    let (mut link, end) = Link::pair(LinkLimits::default());
    let sender = end.sender();
    drop(end);
    sender.send(LinkEvent::Up).await.unwrap();
    drop(sender);
    assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
    assert!(matches!(link.events.next().await, Some(LinkEvent::Down { .. })));
    assert!(link.events.next().await.is_none());
}

#[test]
fn a_reader_is_woken_once_for_each_wait() {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let (mut link, end) = Link::pair(LinkLimits::default());
    assert!(link.events.poll_next(&mut context).is_pending());
    end.sender().try_send(message_event(1)).unwrap();
    end.sender().try_send(message_event(1)).unwrap();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_burst_leaves_no_memory_behind() {
    let mut queue = Queue::default();
    for _ in 0..100 {
        let _ = queue.push(message(1));
    }
    while queue.pop().is_some() {}
    assert_eq!((queue.waiting.capacity(), queue.bytes), (0, 0));
}

#[test]
fn queued_bytes_are_charged_to_the_share_until_they_are_read_or_dropped() {
    let share = budget::Budget::unlimited().unnamed_share("acme");
    let (mut link, mut end) = Link::pair(LinkLimits::default());
    let mut context = Context::from_waker(Waker::noop());
    end.sender().try_send(message_event(3 * budget::GRANULE_BYTES)).unwrap();
    link.charge_to(&share);
    assert_eq!(share.used(), 3 * budget::GRANULE_BYTES, "also what was queued before");
    link.sender.send(message(budget::GRANULE_BYTES)).unwrap();
    link.sender.send(message(10)).unwrap();
    assert_eq!(share.used(), 4 * budget::GRANULE_BYTES, "whole granules");
    assert!(link.events.poll_next(&mut context).is_ready());
    assert_eq!(share.used(), budget::GRANULE_BYTES);
    assert!(end.poll_receive(&mut context).is_ready());
    assert_eq!(share.used(), 0);
    link.sender.send(message(budget::GRANULE_BYTES)).unwrap();
    end.sender().try_send(message_event(budget::GRANULE_BYTES)).unwrap();
    drop(end);
    assert_eq!(share.used(), budget::GRANULE_BYTES, "the session may still read it");
    drop(link);
    assert_eq!(share.used(), 0);
}
