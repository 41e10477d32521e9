//! Replays a log: its streams, which of their requests have no final response yet, the tombstones
//! of ended streams, and the open server requests.
//!
//! The live session has the same state at any time; a test compares the two.

use bytes::Bytes;
use thin_vec::ThinVec;

use crate::checkpoint::{Checkpoint, OpenServerRequest};
use crate::entry::{Decoded, EntryKind, Mark};
use crate::log::Log;
use crate::owner_tags::OwnerTags;
use crate::resumable::{Positions, StreamPosition};
use crate::stream::{Stream, StreamRequest, Tombstone};
use crate::stream_table::StreamTable;
use crate::{Millis, OwnerTag, ReplayBuffer, Unreadable, entry};

/// The state of a session that its log contains.
pub(crate) struct ReplayedLog {
    pub(crate) log: Log,
    pub(crate) table: StreamTable,
    pub(crate) tombstones: ThinVec<Tombstone>,
    pub(crate) server_requests: Vec<OpenServerRequest>,
    pub(crate) positions: Option<Positions>,
}

/// Replays a log that `owner_tag` continues, after the `former` owners, newest first.
pub(crate) fn replay_log(
    log: &[(u64, Bytes)],
    former: &[OwnerTag],
    owner_tag: OwnerTag,
    now: Millis,
) -> Result<ReplayedLog, Unreadable> {
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
    for (number, (_, by, ..)) in (first..).zip(&entries) {
        if !seen.iter().any(|(known, _)| known == by) {
            seen.push((*by, number));
        }
    }
    let mut replay = LogReplay {
        tombstones: carried.tombstones(now),
        server_requests: carried.server_requests().ok_or(Unreadable::LOG)?,
        positions: Positions::restored(carried.take_positions()).unwrap_or_default(),
        table: carried.streams(),
    };
    // A checkpoint holds its streams as they were when it was written.
    let carried: Vec<u64> = replay.table.iter().map(|(number, _)| number).collect();
    for (number, (stream, _, what, read)) in (first..).zip(&entries) {
        let is_carried = number < checkpoint && carried.binary_search(stream).is_ok();
        replay.add_entry(number, *stream, what, is_carried)?;
        // A checkpoint has the positions as they were when it was written.
        if let Some(read) = read.as_deref() {
            let is_newer = number > checkpoint;
            replay
                .add_position(read, is_newer, |at| is_newer || carried.binary_search(&at).is_err());
        }
    }
    let LogReplay { table, tombstones, server_requests, positions } = replay;
    let positions = Positions::restored(positions.standalone());
    let owner_tags = OwnerTags::restored(seen, former, owner_tag, next);
    let entries = entries.into_iter().map(|(stream, _, what, read)| (stream, what, read)).collect();
    Ok(ReplayedLog {
        log: Log::restored(first, entries, owner_tags, now),
        table,
        tombstones,
        server_requests,
        positions,
    })
}

/// The state of a session that its log also contains, as text; for tests that compare the two.
pub(crate) fn outline(
    table: &StreamTable,
    tombstones: &[Tombstone],
    server_requests: impl Iterator<Item = OpenServerRequest>,
) -> String {
    let described = |requests: &[StreamRequest]| -> Vec<_> {
        let rerun = |request: &StreamRequest| request.rerun.as_ref().map(|rerun| rerun.sure);
        let read = |request: &StreamRequest| request.resumable.clone().and_then(|r| r.position);
        requests.iter().map(|r| (r.id.to_json(), r.final_response, rerun(r), read(r))).collect()
    };
    let mut outline = String::new();
    for (number, Stream { requests, last, trimmed, closed, sent_server_request, .. }) in
        table.iter()
    {
        let requests = described(requests);
        outline +=
            &format!("{number}: {last} {trimmed} {closed} {sent_server_request} {requests:?}\n");
    }
    for Tombstone { stream, last, requests, .. } in tombstones {
        outline += &format!("{stream} was: {last} {:?}\n", described(requests));
    }
    let mut server_requests: Vec<_> = server_requests
        .map(|(server_request, stream, at)| (at, stream, server_request.to_string()))
        .collect();
    server_requests.sort();
    outline + &format!("{server_requests:?}")
}

impl ReplayBuffer {
    /// The streams and server requests of the session that only the log has.
    #[doc(hidden)]
    pub fn outline(&self) -> Result<String, Unreadable> {
        let log: Vec<_> = (self.first..).zip(self.entries.iter().cloned()).collect();
        let replayed = replay_log(&log, &[], OwnerTag(0), Millis(0))?;
        Ok(outline(&replayed.table, &replayed.tombstones, replayed.server_requests.into_iter()))
    }
}

/// The newest checkpoint and its number. It contains everything of the older ones.
fn last_checkpoint(first: u64, entries: &[Decoded]) -> Result<(u64, Checkpoint), Unreadable> {
    let newest = (first..).zip(entries).filter_map(|(number, (_, _, what, _))| match what {
        EntryKind::Checkpoint(carried) => Some((number, carried)),
        _ => None,
    });
    match newest.last() {
        Some((number, carried)) => Ok((number, Checkpoint::decode(carried)?)),
        None => Ok((0, Checkpoint::default())),
    }
}

/// The state after the entries so far.
struct LogReplay {
    table: StreamTable,
    tombstones: ThinVec<Tombstone>,
    server_requests: Vec<OpenServerRequest>,
    positions: Positions,
}

impl LogReplay {
    /// A stream of the server was read so far when an entry was written.
    fn add_position(&mut self, read: &StreamPosition, is_newer: bool, may: impl Fn(u64) -> bool) {
        match read.about {
            None if is_newer => self.positions.note_standalone(read.position.clone()),
            None => {}
            Some(_) => self.table.note_position(read, may),
        }
    }

    fn add_entry(
        &mut self,
        number: u64,
        stream: u64,
        what: &EntryKind,
        is_carried: bool,
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
                self.table.insert(number, Stream::opened(number, requests, None));
                return Ok(());
            }
            _ => {}
        }
        if is_carried {
            return Ok(());
        }
        let Some(stream) = self.table.get_mut(stream) else { return Ok(()) };
        match what {
            EntryKind::Event { mark, .. } => {
                stream.last = number;
                match mark {
                    Mark::FinalResponse(id) => stream.settle(id, number),
                    Mark::ServerRequest(_) => stream.sent_server_request = true,
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
