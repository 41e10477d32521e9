//! Calls of payload version 2.

use std::sync::Arc;

use bytes::Bytes;
use ownership::{Incarnation, SessionRequest};
use protocol::{Body, Message, Mirrored, SessionId};
use tenants::{Principal, Tenant};

use super::super::forwarded_request::{ForwardedRequest, Relayed};
use super::super::opening::Opening;
use super::VERSION;
use super::wire::{Reader, Writer};
use crate::Caller;

/// The number of hops of a call when it arrives at the owner.
const HOPS: u8 = 1;

/// Older nodes write 1 here to have the session claimed first. They get the answer "not started"
/// and call again.
const CALLS: u8 = 0;

/// The value in a call that its receiver is to relay to the owner.
const RELAYED: u8 = 2;

/// The value in place of the hop count in a call that creates a session.
const OPENING: u8 = 0xFF;

pub(crate) fn encode_call(caller: &Caller, request: Option<&SessionRequest>) -> Bytes {
    let mut writer = Writer::new(capacity(request));
    write(&mut writer, caller, request);
    writer.finish()
}

pub(crate) fn encode_relayed(
    caller: &Caller,
    request: Option<&SessionRequest>,
    owner: Incarnation,
) -> Bytes {
    let mut writer = Writer::new(capacity(request));
    writer.byte(RELAYED);
    writer.word(owner.0);
    writer.byte(VERSION);
    write(&mut writer, caller, request);
    writer.finish()
}

fn write(writer: &mut Writer, caller: &Caller, request: Option<&SessionRequest>) {
    writer.byte(HOPS);
    writer.byte(CALLS);
    writer.text(&caller.tenant.name);
    writer.text(caller.principal.name());
    writer.text(caller.session.as_str());
    match request {
        Some(SessionRequest::Post { body, mirrored, again }) => {
            writer.byte(0);
            writer.byte(u8::from(*again));
            put_mirrored(writer, mirrored.as_deref());
            put_body(writer, body);
        }
        Some(SessionRequest::Listen { after }) => {
            writer.byte(1);
            writer.perhaps(after.as_deref(), Writer::text);
        }
        Some(SessionRequest::Delete) => writer.byte(2),
        None => writer.byte(3),
    }
}

pub(crate) fn decode_call(bytes: Bytes) -> Option<ForwardedRequest> {
    let mut reader = Reader::new(bytes)?;
    if reader.byte()? != HOPS {
        return None;
    }
    reader.truth()?;
    let tenant = reader.text()?.into();
    let principal = Principal::named(&reader.text()?);
    let session = SessionId::parse(&reader.text()?)?;
    let request = match reader.byte()? {
        0 => {
            let again = reader.truth()?;
            let mirrored = take_mirrored(&mut reader)?;
            Some(SessionRequest::Post { mirrored, body: take_body(&mut reader)?, again })
        }
        1 => Some(SessionRequest::Listen { after: reader.perhaps(Reader::text)? }),
        2 => Some(SessionRequest::Delete),
        3 => None,
        _ => return None,
    };
    reader.finish(ForwardedRequest {
        tenant,
        principal,
        session,
        request,
        trace: None,
        tokens: None,
    })
}

pub(crate) fn decode_relayed(bytes: Bytes) -> Option<Relayed> {
    let mut reader = Reader::new(bytes)?;
    if reader.byte()? != RELAYED {
        return None;
    }
    let owner = Incarnation(reader.word()?);
    let call = reader.rest();
    call.starts_with(&[VERSION, HOPS]).then_some(Relayed { owner, call })
}

pub(crate) fn encode_opening(opening: &Opening) -> Bytes {
    let raw = opening.request.as_ref().map_or(&[][..], |request| request.raw());
    let mut writer = Writer::new(raw.len() + 256);
    writer.byte(OPENING);
    writer.text(&opening.tenant.name);
    writer.number(opening.tenant.sessions_max as u64);
    writer.text(opening.principal.name());
    put_mirrored(&mut writer, opening.mirrored.as_deref());
    writer.bytes(raw);
    writer.finish()
}

pub(crate) fn decode_opening(bytes: Bytes) -> Option<Opening> {
    let mut reader = Reader::new(bytes)?;
    if reader.byte()? != OPENING {
        return None;
    }
    let name = reader.text()?.into();
    let sessions_max = usize::try_from(reader.number()?).ok()?;
    let tenant = Arc::new(Tenant::of_peer(name, sessions_max));
    let principal = Principal::named(&reader.text()?);
    let mirrored = take_mirrored(&mut reader)?;
    let raw = reader.bytes()?;
    let request = match Message::parse(raw.clone()) {
        _ if raw.is_empty() => None,
        Ok(Message::Request(request)) => Some(request),
        _ => return None,
    };
    reader.finish(Opening { tenant, principal, request, mirrored })
}

/// The estimated size of a call, so that a large payload is copied once.
fn capacity(request: Option<&SessionRequest>) -> usize {
    let payload = match request {
        Some(SessionRequest::Post { body: Body::One(message), .. }) => message.raw().len(),
        Some(SessionRequest::Post { body: Body::Batch(members), .. }) => {
            members.iter().flatten().map(|message| message.raw().len() + 8).sum()
        }
        Some(SessionRequest::Listen { .. } | SessionRequest::Delete) | None => 0,
    };
    payload + 256
}

fn put_mirrored(writer: &mut Writer, mirrored: Option<&Mirrored>) {
    let headers = || mirrored.into_iter().flat_map(Mirrored::headers);
    writer.number(headers().count() as u64);
    for (name, value) in headers() {
        writer.text(name);
        writer.bytes(value);
    }
}

fn take_mirrored(reader: &mut Reader) -> Option<Option<Box<Mirrored>>> {
    let headers = reader.several(|reader| Some((reader.text()?, reader.bytes()?)))?;
    Some(Mirrored::from_headers(headers.iter().map(|(name, value)| (&**name, &**value))))
}

/// The members of a batch are encoded one by one: a member that the sender refused stays refused.
fn put_body(writer: &mut Writer, body: &Body) {
    match body {
        Body::One(message) => {
            writer.byte(0);
            writer.bytes(message.raw());
        }
        Body::Batch(members) => {
            writer.byte(1);
            writer.number(members.len() as u64);
            for member in members {
                match member {
                    Ok(message) => {
                        writer.byte(0);
                        writer.bytes(message.raw());
                    }
                    Err(rejection) => {
                        writer.byte(1);
                        writer.rejection(rejection);
                    }
                }
            }
        }
    }
}

fn take_body(reader: &mut Reader) -> Option<Body> {
    let message = |reader: &mut Reader| Message::parse(reader.bytes()?).ok();
    let member = |reader: &mut Reader| match reader.byte()? {
        0 => message(reader).map(Ok),
        1 => reader.rejection().map(Err),
        _ => None,
    };
    match reader.byte()? {
        0 => message(reader).map(Body::One),
        1 => reader.several(member).filter(|members| !members.is_empty()).map(Body::Batch),
        _ => None,
    }
}
