//! The headers that mirror a message to a server whose revision has them: which arguments of its tools are
//! mirrored, and the calls that wait until that is known (HDR-16, HDR-17).

use std::collections::BTreeMap;

use protocol::header_params::ToolsPage;
use protocol::{
    ErrorCode, HeaderParams, HeadersTooLong, Message, Method, Mirrored, Request, RequestId,
    Response, Revision, header_params, payload, with_protocol_version,
};

use super::effect::Effect;
use crate::exchange::{ExchangeEvent, HeaderText};

/// Most bytes of the annotations of a session's tools. Those of further tools are not kept: their calls have
/// no such headers, and a server that checks these refuses them.
const TOOLS_BYTES_MAX: usize = 64 << 10;
/// What a tool costs beside its names.
const TOOL_BYTES: usize = 64;
/// Most pages of tools that are read; tools on later ones are taken for tools without annotations.
const PAGES_MAX: u32 = 32;
/// Most calls that wait for the list. Further ones are sent with the annotations that are known.
const PARKED_MAX: usize = 1_024;

/// Which headers messages have.
#[derive(Debug, Default)]
pub(super) struct Mirroring {
    asked: Option<Revision>,
    /// Whether messages have these headers at all.
    is_on: bool,
    /// The annotated tools.
    tools: BTreeMap<Box<str>, HeaderParams>,
    tools_bytes: usize,
    /// Whether a tool that is not among them has no annotations.
    is_complete: bool,
    /// The request for a page, and how many were requested, while the list is being read.
    reading: Option<(RequestId, u32)>,
    parked: Vec<Parked>,
    parked_bytes: usize,
}

/// A call that waits until the annotations of its tool are known.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) request: Request,
    /// The server has refused its headers.
    pub(super) is_second: bool,
}

impl Mirroring {
    /// The revision that the settings have for the server.
    pub(super) fn asking_for(revision: Option<Revision>) -> Self {
        let is_on = revision.is_some_and(Revision::has_mirrored_headers);
        Self { asked: revision, is_on, ..Self::default() }
    }

    /// `initialize` for that revision.
    pub(super) fn initialize_of(&self, request: &Request) -> Request {
        match (self.asked, request.params()) {
            (Some(revision), Some(params)) => {
                request.with_params(&with_protocol_version(&params, revision))
            }
            _ => request.clone(),
        }
    }

    /// The server answered with this revision. One that is not known is a later one, which has the headers.
    pub(super) fn note_revision(&mut self, revision: Option<&HeaderText>) {
        let named = revision.and_then(HeaderText::text).and_then(Revision::named);
        self.is_on &= named.is_none_or(Revision::has_mirrored_headers);
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The bytes that it keeps.
    pub(super) fn bytes(&self) -> usize {
        self.tools_bytes + self.parked_bytes
    }

    /// The headers of a message.
    pub(super) fn headers(
        &self,
        message: &Message,
    ) -> Result<Option<Box<Mirrored>>, HeadersTooLong> {
        if !self.is_on {
            return Ok(None);
        }
        let annotations = match message {
            Message::Request(request) => tool_of(request).and_then(|tool| self.tools.get(&*tool)),
            _ => None,
        };
        Mirrored::of(message, annotations).map(|mirrored| Some(Box::new(mirrored)))
    }

    /// Whether the annotations of the called tool are not known.
    pub(super) fn has_to_read(&self, request: &Request) -> bool {
        self.is_on
            && !self.is_complete
            && self.parked.len() < PARKED_MAX
            && tool_of(request).is_some_and(|tool| !self.tools.contains_key(&*tool))
    }

    /// Whether a refusal is about the headers.
    pub(super) fn is_refused(&self, event: &ExchangeEvent) -> bool {
        let ExchangeEvent::Refused { status: 400, error: Some(error) } = event else {
            return false;
        };
        let code = protocol::glance::error_code(error.raw());
        self.is_on && code == Some(ErrorCode::HeaderMismatch.number())
    }

    /// Keeps a call until the list is read.
    pub(super) fn park(&mut self, request: Request, is_second: bool) {
        self.parked_bytes += request.raw().len();
        self.parked.push(Parked { request, is_second });
    }

    pub(super) fn take_parked(&mut self) -> Vec<Parked> {
        self.parked_bytes = 0;
        std::mem::take(&mut self.parked)
    }

    /// Removes a call that waits. Returns false if none has this id.
    pub(super) fn drop_parked(&mut self, id: &RequestId) -> bool {
        let Some(at) = self.parked.iter().position(|parked| parked.request.id == *id) else {
            return false;
        };
        self.parked_bytes -= self.parked.remove(at).request.raw().len();
        true
    }

    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// A page is requested.
    pub(super) fn begin_page(&mut self, request: RequestId) {
        let pages = self.reading.as_ref().map_or(0, |(_, pages)| *pages);
        if pages == 0 {
            self.forget_tools();
        }
        self.reading = Some((request, pages + 1));
    }

    /// Whether this is the request for the page that is being read.
    pub(super) fn awaits_page(&self, id: &RequestId) -> bool {
        self.reading.as_ref().is_some_and(|(request, _)| request == id)
    }

    /// The requested page came, or did not. Returns the cursor of the next one; without one the list is read as
    /// far as possible.
    pub(super) fn end_page(&mut self, response: Option<&Response>) -> Option<String> {
        let result = response.and_then(|response| response.outcome().ok());
        let cursor = result.and_then(|result| {
            let page = header_params::tools(&result);
            self.learn_page(&page);
            page.next_cursor
        });
        let may_go_on = self.reading.as_ref().is_some_and(|(_, pages)| *pages < PAGES_MAX);
        let cursor = cursor.filter(|_| may_go_on);
        if cursor.is_none() {
            self.reading = None;
            self.is_complete = true;
        }
        cursor
    }

    /// The server sent a message that is no response.
    pub(super) fn note_message(&mut self, message: &Message) {
        if let Message::Notification(notification) = message
            && notification.method == Method::ToolsListChanged
        {
            self.forget_tools();
        }
    }

    /// A response that may be a list of tools, without those that have invalid annotations.
    pub(super) fn read_list(&mut self, list: Response, effects: &mut Vec<Effect>) -> Response {
        let Ok(result) = list.outcome() else { return list };
        self.learn_page(&header_params::tools(&result));
        let Some((valid, left_out)) = header_params::without_invalid_tools(&result) else {
            return list;
        };
        effects.push(Effect::LeftOut(left_out));
        list.with_result(&valid)
    }

    /// Stores which arguments of these tools are mirrored. A client reads a list from its beginning. If it did
    /// not, or if its list is older than another, the server refuses a call, and the list is read.
    fn learn_page(&mut self, page: &ToolsPage) {
        for tool in &page.tools {
            if let Some(former) = self.tools.remove(&*tool.name) {
                self.tools_bytes -= bytes(&tool.name, &former);
            }
            let Ok(params) = &tool.header_params else { continue };
            let more = bytes(&tool.name, params);
            if !params.is_empty() && self.tools_bytes + more <= TOOLS_BYTES_MAX {
                self.tools_bytes += more;
                self.tools.insert(tool.name.as_str().into(), params.clone());
            }
        }
        // An empty page may be no list at all.
        self.is_complete |= page.next_cursor.is_none() && !page.tools.is_empty();
    }

    /// The list has changed.
    pub(super) fn forget_tools(&mut self) {
        self.tools.clear();
        self.tools_bytes = 0;
        self.is_complete = false;
    }
}

/// The tool that a request calls.
fn tool_of(request: &Request) -> Option<String> {
    let params = request.params().filter(|_| request.method == Method::ToolsCall)?;
    payload::name_of(&params)
}

fn bytes(name: &str, params: &HeaderParams) -> usize {
    TOOL_BYTES + name.len() + params.bytes()
}
