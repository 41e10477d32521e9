//! Which tool parameters are mirrored in headers (DRAFT-2026-v1, HDR-10).
//!
//! The annotations are in the tools' input schemas. The session lists the tools once its server
//! is up, and again when the server notifies it of a change. Calls that are posted before the
//! list is known are parked.

use std::collections::BTreeMap;

use protocol::header_params::ToolsPage;
use protocol::{HeaderParams, Method, Mirrored, Rejection, Request, RequestId, Response};
use thin_vec::ThinVec;

use crate::earliest::Earliest;
use crate::server_link::ServerLink;
use crate::sparse::Sparse;
use crate::step_context::StepContext;
use crate::{Answer, Millis, SinkId};

/// Most pages of tools that are read; calls of tools on later ones are not checked.
const PAGES_MAX: u32 = 32;
/// Most bytes of the annotations of tools. Those of further tools are not kept, and their calls not checked.
const TOOLS_BYTES_MAX: usize = 64 << 10;
/// What a tool costs beside its names.
const TOOL_BYTES: usize = 64;

/// The known annotations of tools, and the calls that wait for them.
#[derive(Default)]
pub(crate) struct Mirroring {
    tools: Sparse<Annotated>,
    /// How many pages were requested, while the list is being read.
    reading: Option<u32>,
    /// Calls that wait for the list; bounded by `exchanges_max`.
    parked: ThinVec<Parked>,
}

/// The tools with annotations.
#[derive(Default)]
struct Annotated {
    params: BTreeMap<Box<str>, HeaderParams>,
    bytes: usize,
}

impl Annotated {
    fn add(&mut self, name: String, params: HeaderParams) {
        let bytes_of = |params: &HeaderParams| TOOL_BYTES + name.len() + params.bytes();
        let bytes = bytes_of(&params);
        if let Some(former) = self.params.remove(&*name) {
            self.bytes -= bytes_of(&former);
        }
        if self.bytes + bytes <= TOOLS_BYTES_MAX {
            self.bytes += bytes;
            self.params.insert(name.into(), params);
        }
    }
}

/// A call that waits for the list of tools.
pub(crate) struct Parked {
    pub(crate) sink: SinkId,
    pub(crate) request: Request,
    pub(crate) mirrored: Option<Mirrored>,
    /// May it have been run already?
    pub(crate) again: bool,
    /// When it gets an error if the list is still not known.
    ends_at: Millis,
}

impl Mirroring {
    /// Is the list being read?
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// The bytes of the annotations, and of the calls that wait.
    pub(crate) fn bytes(&self) -> usize {
        let parked = self.parked.iter().map(|parked| parked.request.raw().len());
        self.tools.get().map_or(0, |tools| tools.bytes) + parked.sum::<usize>()
    }

    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Gives the list up, unless a call waits for it.
    pub(crate) fn give_up_unless_parked(&mut self) {
        if self.parked.is_empty() {
            self.reading = None;
        }
    }

    /// Lists the server's tools again.
    pub(crate) fn reread_tools(&mut self, context: &mut StepContext<'_>, link: &mut ServerLink) {
        self.tools.clear();
        self.read_tools(context, link);
    }

    /// Lists the server's tools, unless a list is being read.
    pub(crate) fn read_tools(&mut self, context: &mut StepContext<'_>, link: &mut ServerLink) {
        if self.reading.is_none() {
            self.reading = Some(1);
            let list = link.own_request(Method::ToolsList, None);
            link.send_or_queue(context, list);
        }
    }

    /// Stores which parameters of these tools are mirrored.
    pub(crate) fn learn_page(&mut self, page: ToolsPage) {
        for tool in page.tools {
            if let Ok(params) = tool.header_params
                && !params.is_empty()
            {
                self.tools.get_or_insert_with(Annotated::default).add(tool.name, params);
            }
        }
    }

    /// Requests the page at `cursor`. Returns false if the list ends there: it has no further
    /// page or too many.
    pub(crate) fn read_next_page(
        &mut self,
        context: &mut StepContext<'_>,
        link: &mut ServerLink,
        cursor: Option<impl serde::Serialize>,
    ) -> bool {
        let pages = self.reading.unwrap_or(PAGES_MAX);
        let Some(cursor) = cursor.filter(|_| pages < PAGES_MAX) else {
            self.reading = None;
            return false;
        };
        self.reading = Some(pages + 1);
        let params = serde_json::json!({ "cursor": cursor }).to_string();
        link.send_own(context, Method::ToolsList, Some(params.as_bytes()));
        true
    }

    /// Returns the calls that wait for the list, which was read as far as possible.
    pub(crate) fn take_parked(&mut self) -> ThinVec<Parked> {
        std::mem::take(&mut self.parked)
    }

    /// Checks that the mirrored parameters of a tool call match its arguments. Returns false if that
    /// is not known yet: the call waits.
    pub(crate) fn check_params(
        &mut self,
        context: &StepContext<'_>,
        sink: SinkId,
        request: &Request,
        mirrored: Option<&Mirrored>,
        again: bool,
    ) -> Result<bool, Rejection> {
        if self.reading.is_some() && self.parked.len() < context.limits().exchanges_max {
            let (request, mirrored) = (request.clone(), mirrored.cloned());
            let ends_at = context.now.plus(context.limits().request_secs * 1_000);
            self.parked.push(Parked { sink, request, mirrored, again, ends_at });
            return Ok(false);
        }
        let tool = request.params().and_then(|params| protocol::payload::name_of(&params));
        let annotations = tool.and_then(|tool| self.tools.get()?.params.get(&*tool));
        let message = request.clone().into();
        Mirrored::check(mirrored, &message, annotations).map(|()| true)
    }

    /// The client cancels a call that waits for the list. Returns false if none does.
    pub(crate) fn cancel_parked(&mut self, context: &mut StepContext<'_>, id: &RequestId) -> bool {
        let Some(index) = self.parked.iter().position(|parked| parked.request.id == *id) else {
            return false;
        };
        let sink = self.parked.swap_remove(index).sink;
        context.answer_sink(sink, Answer::Nothing);
        true
    }

    /// A call that waits for the list was posted again: only the newer POST is answered. Returns
    /// false if no such call waits.
    pub(crate) fn take_over_parked(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        let mut parked = self.parked.iter_mut();
        let Some(parked) = parked.find(|parked| parked.request.id == *id) else { return false };
        let older = std::mem::replace(&mut parked.sink, sink);
        context.answer_sink(older, Answer::Nothing);
        true
    }

    pub(crate) fn note_deadlines(&self, earliest: &mut Earliest) {
        for parked in &self.parked {
            earliest.add_deadline(parked.ends_at);
        }
    }

    /// Each call that has waited for the list for too long gets an error.
    pub(crate) fn refuse_late(&mut self, context: &mut StepContext<'_>) {
        let secs = context.limits().request_secs;
        while let Some(late) = self.parked.iter().position(|call| call.ends_at <= context.now) {
            let Parked { sink, request, .. } = self.parked.swap_remove(late);
            let text = format!(
                "the server did not list its tools within {secs} s; it did not get the call"
            );
            let error = Response::error(Some(request.id), crate::REFUSED, &text, None);
            context.answer_sink(sink, Answer::Json(error.raw().clone()));
        }
    }

    /// The list cannot be read: each call that waits for it gets an error.
    pub(crate) fn fail_parked(
        &mut self,
        context: &mut StepContext<'_>,
        error: &impl Fn(RequestId) -> Response,
    ) {
        self.reading = None;
        for Parked { sink, request, .. } in self.take_parked() {
            context.answer_sink(sink, Answer::Json(error(request.id).raw().clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_annotations_is_bounded_and_charged() {
        let mut mirroring = Mirroring::default();
        let annotated = r#"{"properties":{"p":{"type":"string","x-mcp-header":"P"}}}"#;
        for page in 0..100 {
            let tools: Vec<_> = (0..100)
                .map(|n| format!(r#"{{"name":"{page}-{n}","inputSchema":{annotated}}},{{"name":"plain{page}-{n}"}}"#))
                .collect();
            let result = format!(r#"{{"tools":[{}]}}"#, tools.join(","));
            mirroring.learn_page(protocol::header_params::tools(result.as_bytes()));
            assert!(mirroring.bytes() <= TOOLS_BYTES_MAX);
        }
        assert!(mirroring.bytes() > TOOLS_BYTES_MAX - 200);
        let former = mirroring.bytes();
        // The same tool again, with annotations that are longer.
        let long = annotated.replace("\"P\"", &format!("\"{}\"", "P".repeat(1_000)));
        let result = format!(r#"{{"tools":[{{"name":"0-0","inputSchema":{long}}}]}}"#);
        mirroring.learn_page(protocol::header_params::tools(result.as_bytes()));
        assert!(mirroring.bytes() <= former, "the tool has no room any more");
        assert!(mirroring.tools.get().is_some_and(|tools| tools.params.len() > 300));
    }
}
