//! Replies of payload version 2.

use bytes::Bytes;
use conversation::{Answer, EventId, Frame, OwnerTag, Refusal};
use protocol::SessionId;

use super::wire::{Reader, Writer};
use crate::ReplyEvent;

/// The first byte of the reply that announces a new session. No other reply begins with it.
const OPENED: u8 = 0xFF;

pub(crate) fn encode_reply(event: &ReplyEvent) -> Bytes {
    let mut writer = Writer::new(capacity(event));
    match event {
        ReplyEvent::Answer(answer) => {
            writer.byte(0);
            put_answer(&mut writer, answer);
        }
        ReplyEvent::Open { welcome, at } => {
            writer.byte(1);
            writer.byte(u8::from(*welcome));
            writer.perhaps(*at, put_id);
        }
        ReplyEvent::Frame(frame) => {
            writer.byte(2);
            put_frame(&mut writer, frame);
        }
        ReplyEvent::Abort => writer.byte(3),
        ReplyEvent::Moved => writer.byte(4),
        ReplyEvent::LeaseLost { held_secs } => {
            writer.byte(5);
            writer.number(*held_secs);
        }
    }
    writer.finish()
}

pub(crate) fn decode_reply(bytes: Bytes) -> Option<ReplyEvent> {
    let mut reader = Reader::new(bytes)?;
    let event = match reader.byte()? {
        0 => ReplyEvent::Answer(take_answer(&mut reader)?),
        1 => ReplyEvent::Open { welcome: reader.truth()?, at: reader.perhaps(take_id)? },
        2 => ReplyEvent::Frame(take_frame(&mut reader)?),
        3 => ReplyEvent::Abort,
        4 => ReplyEvent::Moved,
        5 => ReplyEvent::LeaseLost { held_secs: reader.number()? },
        _ => return None,
    };
    reader.finish(event)
}

/// An upper bound of the reply's size, so that a large payload is copied once.
fn capacity(event: &ReplyEvent) -> usize {
    let payload = match event {
        ReplyEvent::Answer(Answer::Json(json) | Answer::Welcome(json)) => json.len(),
        ReplyEvent::Answer(Answer::Array(all)) => all.iter().map(|json| json.len() + 10).sum(),
        ReplyEvent::Frame(Frame::Message { data, .. }) => data.len(),
        _ => 0,
    };
    payload + 48
}

fn put_answer(writer: &mut Writer, answer: &Answer) {
    match answer {
        Answer::Accepted => writer.byte(0),
        Answer::Json(json) => {
            writer.byte(1);
            writer.bytes(json);
        }
        Answer::Welcome(json) => {
            writer.byte(2);
            writer.bytes(json);
        }
        Answer::Array(all) => {
            writer.byte(3);
            writer.number(all.len() as u64);
            all.iter().for_each(|json| writer.bytes(json));
        }
        Answer::Nothing => writer.byte(4),
        Answer::Ended => writer.byte(5),
        Answer::Refused(refusal) => {
            writer.byte(6);
            put_refusal(writer, refusal);
        }
    }
}

fn take_answer(reader: &mut Reader) -> Option<Answer> {
    Some(match reader.byte()? {
        0 => Answer::Accepted,
        1 => Answer::Json(reader.bytes()?),
        2 => Answer::Welcome(reader.bytes()?),
        3 => Answer::Array(reader.several(Reader::bytes)?),
        4 => Answer::Nothing,
        5 => Answer::Ended,
        6 => Answer::Refused(take_refusal(reader)?),
        _ => return None,
    })
}

fn put_refusal(writer: &mut Writer, refusal: &Refusal) {
    match refusal {
        Refusal::Rejected(rejection) => {
            writer.byte(0);
            writer.rejection(rejection);
        }
        Refusal::UnknownSession => writer.byte(1),
        Refusal::UnknownEvent => writer.byte(2),
        Refusal::NothingMore => writer.byte(3),
        Refusal::TooManySessions => writer.byte(4),
        Refusal::Busy => writer.byte(5),
        Refusal::Stopping => writer.byte(6),
        Refusal::Unavailable => writer.byte(7),
        Refusal::Moved => writer.byte(8),
    }
}

fn take_refusal(reader: &mut Reader) -> Option<Refusal> {
    Some(match reader.byte()? {
        0 => Refusal::Rejected(reader.rejection()?),
        1 => Refusal::UnknownSession,
        2 => Refusal::UnknownEvent,
        3 => Refusal::NothingMore,
        4 => Refusal::TooManySessions,
        5 => Refusal::Busy,
        6 => Refusal::Stopping,
        7 => Refusal::Unavailable,
        8 => Refusal::Moved,
        _ => return None,
    })
}

fn put_frame(writer: &mut Writer, frame: &Frame) {
    match frame {
        Frame::Cursor { id, retry } => {
            writer.byte(0);
            put_id(writer, *id);
            writer.number(u64::from(*retry));
        }
        Frame::Retry(retry) => {
            writer.byte(1);
            writer.number(u64::from(*retry));
        }
        Frame::Message { id, data } => {
            writer.byte(2);
            writer.perhaps(*id, put_id);
            writer.bytes(data);
        }
        Frame::KeepAlive => writer.byte(3),
    }
}

fn take_frame(reader: &mut Reader) -> Option<Frame> {
    let retry = |reader: &mut Reader| u32::try_from(reader.number()?).ok();
    Some(match reader.byte()? {
        0 => Frame::Cursor { id: take_id(reader)?, retry: retry(reader)? },
        1 => Frame::Retry(retry(reader)?),
        2 => Frame::Message { id: reader.perhaps(take_id)?, data: reader.bytes()? },
        3 => Frame::KeepAlive,
        _ => return None,
    })
}

fn put_id(writer: &mut Writer, id: EventId) {
    writer.number(id.stream);
    writer.word(id.owner_tag.0);
    writer.number(id.number);
}

fn take_id(reader: &mut Reader) -> Option<EventId> {
    let stream = reader.number()?;
    let owner_tag = OwnerTag(reader.word()?);
    Some(EventId { stream, owner_tag, number: reader.number()? })
}

pub(crate) fn encode_opened(session: &SessionId) -> Bytes {
    let mut writer = Writer::new(session.as_str().len() + 8);
    writer.byte(OPENED);
    writer.text(session.as_str());
    writer.finish()
}

pub(crate) fn decode_opened(reply: Bytes) -> Option<SessionId> {
    let mut reader = Reader::new(reply)?;
    if reader.byte()? != OPENED {
        return None;
    }
    let session = SessionId::parse(&reader.text()?)?;
    reader.finish(session)
}
