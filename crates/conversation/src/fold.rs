//! Reads a log back: its streams, which of their requests have no final response yet, the
//! tombstones of streams that have ended, and the server requests that are open.
//!
//! The live session knows the same at every moment; a test holds the two together.

use bytes::Bytes;
use thin_vec::ThinVec;

use crate::carried::{Carried, OpenServerRequest};
use crate::entry::{EntryKind, Mark};
use crate::log::Log;
use crate::owner_tags::OwnerTags;
use crate::session::Session;
use crate::stream::{Owed, Stream, Tombstone};
use crate::streams::Streams;
use crate::{Millis, OwnerTag, Ring, Unreadable, entry};

/// What a log comes to.
pub(crate) struct Folded {
    pub(crate) log: Log,
    pub(crate) streams: Streams,
    pub(crate) finished: ThinVec<Tombstone>,
    pub(crate) server_requests: Vec<OpenServerRequest>,
}

/// Reads a log that `owner_tag` goes on with, after the `former` ones, newest first.
pub(crate) fn fold(
    log: &[(u64, Bytes)],
    former: &[OwnerTag],
    owner_tag: OwnerTag,
    now: Millis,
) -> Result<Folded, Unreadable> {
    let first = log.first().map_or(1, |(number, _)| *number);
    let next = first.checked_add(log.len() as u64).ok_or(Unreadable::LOG)?;
    let whole = log.iter().map(|(number, _)| *number).eq(first..next);
    if first == 0 || !whole {
        return Err(Unreadable::LOG);
    }
    let entries: Vec<_> =
        log.iter().map(|(_, entry)| entry::decode(entry)).collect::<Result<_, _>>()?;
    let (checkpoint, mut carried) = last_checkpoint(first, &entries)?;
    let mut seen = carried.owner_tags().ok_or(Unreadable::LOG)?;
    for (number, (_, by, _)) in (first..).zip(&entries) {
        if !seen.iter().any(|(known, _)| known == by) {
            seen.push((*by, number));
        }
    }
    let mut folding = Folding {
        finished: carried.tombstones(now),
        server_requests: carried.server_requests().ok_or(Unreadable::LOG)?,
        streams: carried.streams(),
    };
    // A checkpoint says how its streams stood when it was written.
    let told: Vec<u64> = folding.streams.iter().map(|(number, _)| number).collect();
    for (number, (stream, _, what)) in (first..).zip(&entries) {
        let is_told = number < checkpoint && told.binary_search(stream).is_ok();
        folding.take(number, *stream, what, is_told)?;
    }
    let Folding { streams, finished, server_requests } = folding;
    let owner_tags = OwnerTags::restored(seen, former, owner_tag, next);
    let entries = entries.into_iter().map(|(stream, _, what)| (stream, what)).collect();
    Ok(Folded {
        log: Log::restored(first, entries, owner_tags, now),
        streams,
        finished,
        server_requests,
    })
}

/// What a session knows that its log says, too; for tests that hold the two together.
fn outline(
    streams: &Streams,
    finished: &ThinVec<Tombstone>,
    server_requests: impl Iterator<Item = OpenServerRequest>,
) -> String {
    let owed = |requests: &[Owed]| -> Vec<_> {
        let rerun = |owed: &Owed| owed.rerun.as_ref().map(|rerun| rerun.sure);
        requests.iter().map(|owed| (owed.id.to_json(), owed.final_response, rerun(owed))).collect()
    };
    let mut outline = String::new();
    for (number, Stream { requests, last, trimmed, closed, asked, .. }) in streams.iter() {
        let requests = owed(requests);
        outline += &format!("{number}: {last} {trimmed} {closed} {asked} {requests:?}\n");
    }
    for Tombstone { stream, last, requests, .. } in finished {
        outline += &format!("{stream} was: {last} {:?}\n", owed(requests));
    }
    let mut server_requests: Vec<_> = server_requests
        .map(|(server_request, stream, at)| (at, stream, server_request.to_string()))
        .collect();
    server_requests.sort();
    outline + &format!("{server_requests:?}")
}

impl Session {
    /// What it knows of its streams and questions that its log says, too.
    #[doc(hidden)]
    pub fn outline(&self) -> String {
        outline(&self.streams, &self.finished, self.open_asks())
    }
}

impl Ring {
    /// What the log alone says of the session's streams and questions.
    #[doc(hidden)]
    pub fn outline(&self) -> Result<String, Unreadable> {
        let log: Vec<_> = (self.first..).zip(self.entries.iter().cloned()).collect();
        let folded = fold(&log, &[], OwnerTag(0), Millis(0))?;
        Ok(outline(&folded.streams, &folded.finished, folded.server_requests.into_iter()))
    }
}

/// The newest checkpoint and its number. It carries everything that older ones carried.
fn last_checkpoint(
    first: u64,
    entries: &[(u64, OwnerTag, EntryKind)],
) -> Result<(u64, Carried), Unreadable> {
    let newest = (first..).zip(entries).filter_map(|(number, (_, _, what))| match what {
        EntryKind::Checkpoint(carried) => Some((number, carried)),
        _ => None,
    });
    match newest.last() {
        Some((number, carried)) => Ok((number, Carried::decode(carried)?)),
        None => Ok((0, Carried::default())),
    }
}

/// What the entries so far come to.
struct Folding {
    streams: Streams,
    finished: ThinVec<Tombstone>,
    server_requests: Vec<OpenServerRequest>,
}

impl Folding {
    fn take(
        &mut self,
        number: u64,
        stream: u64,
        what: &EntryKind,
        is_told: bool,
    ) -> Result<(), Unreadable> {
        match what {
            EntryKind::Event { mark: Mark::ServerRequest(server_request), .. } => {
                self.server_requests.push((*server_request, stream, number))
            }
            EntryKind::Answered { server_request } => {
                self.server_requests.retain(|(open, ..)| open != server_request)
            }
            EntryKind::Opened { requests } => {
                if number != stream {
                    return Err(Unreadable::LOG);
                }
                let owed = |opening: &crate::entry::Opening| Owed {
                    rerun: opening.rerun.clone(),
                    ..Owed::new(opening.id.clone(), 0)
                };
                let requests = requests.iter().map(owed).collect();
                self.streams.insert(number, Stream::new(number, requests, None));
                return Ok(());
            }
            _ => {}
        }
        if is_told {
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(stream) else { return Ok(()) };
        match what {
            EntryKind::Event { mark, .. } => {
                stream.last = number;
                match mark {
                    Mark::FinalResponse(id) => stream.settle(id, number),
                    Mark::ServerRequest(_) => stream.asked = true,
                    Mark::Plain => {}
                }
            }
            EntryKind::Cancelled { request } => stream.settle(request, number),
            EntryKind::Closed => stream.closed = !mutant!("read_no_end_of_a_stream"),
            _ => {}
        }
        Ok(())
    }
}
