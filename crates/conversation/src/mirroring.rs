//! Which tool parameters are mirrored in headers (DRAFT-2026-v1, HDR-10).
//!
//! The annotations stand in the tools' input schemas, so the tools are listed once the
//! session's server is up, and again when it says that they changed. Calls that come
//! before the list is known wait for it.

use std::collections::BTreeMap;

use protocol::{HeaderParams, Method, Mirrored, Rejection, Request, RequestId, Response};
use thin_vec::ThinVec;

use crate::session::{Session, StepContext};
use crate::{Answer, Effect, Refusal, SinkId};

/// Most pages of tools that are read; tools on later ones are not checked.
const PAGES_MAX: u32 = 32;

/// What is known of the tools' annotations.
#[derive(Default)]
pub(crate) struct Mirroring {
    /// None where nothing was listed.
    #[allow(clippy::box_collection, reason = "a pointer while there is none")]
    tools: Option<Box<BTreeMap<Box<str>, HeaderParams>>>,
    /// How many pages were asked for, while the list is being read.
    reading: Option<u32>,
    /// Calls that wait for the list; bounded by `exchanges_max`.
    parked: ThinVec<Parked>,
}

struct Parked {
    sink: SinkId,
    request: Request,
    mirrored: Option<Mirrored>,
    /// May it have been run already?
    again: bool,
}

impl Mirroring {
    /// Is the list being read?
    pub(crate) fn is_busy(&self) -> bool {
        self.reading.is_some()
    }

    /// Forgets that the list is being read, unless a call waits for it to check its headers.
    pub(crate) fn give_up_unless_parked(&mut self) {
        if self.parked.is_empty() {
            self.reading = None;
        }
    }

    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }
}

impl Session {
    /// Lists the server's tools, in revisions where that matters.
    pub(crate) fn learn_tools(&mut self, context: &mut StepContext<'_>) {
        let has_tools = self.client.as_ref().is_some_and(|client| client.server_has_tools);
        if !self.revision().has_mirrored_headers() || self.duplex.is_some() || !has_tools {
            return;
        }
        self.mirroring.tools = None;
        self.read_tools(context);
    }

    /// Lists the server's tools, unless that is being done.
    pub(crate) fn read_tools(&mut self, context: &mut StepContext<'_>) {
        if self.mirroring.reading.is_none() {
            self.mirroring.reading = Some(1);
            let list = self.own(Method::ToolsList, None);
            self.send(context, list.into());
        }
    }

    /// A page of tools came.
    pub(crate) fn learned_tools(&mut self, context: &mut StepContext<'_>, response: &Response) {
        let Some(pages) = self.mirroring.reading else { return };
        let page = response.outcome().ok().map(|result| protocol::header_params::tools(&result));
        let mirrors = self.revision().has_mirrored_headers();
        let next = page.and_then(|page| {
            self.learn_of_tools(&page);
            for tool in page.tools.into_iter().filter(|_| mirrors) {
                if let Ok(params) = tool.header_params {
                    let tools = self.mirroring.tools.get_or_insert_default();
                    tools.insert(tool.name.into(), params);
                }
            }
            page.next_cursor
        });
        if let Some(cursor) = next.filter(|_| pages < PAGES_MAX) {
            self.mirroring.reading = Some(pages + 1);
            let params = serde_json::json!({ "cursor": cursor }).to_string();
            self.send_own(context, Method::ToolsList, Some(params.as_bytes()));
            return;
        }
        self.mirroring.reading = None;
        self.decide(context);
        for parked in std::mem::take(&mut self.mirroring.parked) {
            let Parked { sink, request, mirrored, again } = parked;
            match self.check_params(sink, &request, mirrored.as_ref(), again) {
                Ok(_) => self.take_post(context, sink, request, again),
                Err(rejection) => {
                    let answer = Answer::Refused(Refusal::Rejected(rejection));
                    context.effects.push(Effect::Answer { sink, answer });
                }
            }
        }
    }

    /// Do the mirrored parameters of a tool call match its arguments? False when that is
    /// not known yet: the call waits.
    pub(crate) fn check_params(
        &mut self,
        sink: SinkId,
        request: &Request,
        mirrored: Option<&Mirrored>,
        again: bool,
    ) -> Result<bool, Rejection> {
        if self.mirroring.reading.is_some()
            && self.mirroring.parked.len() < self.limits.exchanges_max
        {
            let (request, mirrored) = (request.clone(), mirrored.cloned());
            let parked = Parked { sink, request, mirrored, again };
            self.mirroring.parked.push(parked);
            return Ok(false);
        }
        let tool = request.params().and_then(|params| protocol::payload::name_of(&params));
        let annotations = tool.and_then(|tool| self.mirroring.tools.as_ref()?.get(&*tool));
        let message = request.clone().into();
        Mirrored::check(mirrored, &message, annotations).map(|()| true)
    }

    /// The client cancels a call that waits for the list. False where none does.
    pub(crate) fn unpark(&mut self, context: &mut StepContext<'_>, id: &RequestId) -> bool {
        let parked = &mut self.mirroring.parked;
        let Some(index) = parked.iter().position(|parked| parked.request.id == *id) else {
            return false;
        };
        let sink = parked.swap_remove(index).sink;
        context.effects.push(Effect::Answer { sink, answer: Answer::Nothing });
        true
    }

    /// A call that waits for the list was posted again: only the newer post is answered.
    /// False where none does.
    pub(crate) fn take_over_parked(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        let mut parked = self.mirroring.parked.iter_mut();
        let Some(parked) = parked.find(|parked| parked.request.id == *id) else { return false };
        let older = std::mem::replace(&mut parked.sink, sink);
        context.effects.push(Effect::Answer { sink: older, answer: Answer::Nothing });
        true
    }

    /// The list cannot be read: each call that waits for it gets an error.
    pub(crate) fn fail_parked(
        &mut self,
        context: &mut StepContext<'_>,
        error: &impl Fn(RequestId) -> Response,
    ) {
        self.mirroring.reading = None;
        for Parked { sink, request, .. } in std::mem::take(&mut self.mirroring.parked) {
            let answer = Answer::Json(error(request.id).raw().clone());
            context.effects.push(Effect::Answer { sink, answer });
        }
    }
}
