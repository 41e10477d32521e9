//! Which requests may be run a second time.
//!
//! A request that only reads may be run twice. A call of a tool may if the tool's annotations
//! allow a second call, or if the backend is configured so. The annotations are read from the
//! lists that clients request; only if they are not known, the session reads the list.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use protocol::header_params::ToolsPage;
use protocol::{Method, Request, payload};
use thin_vec::ThinVec;

use crate::entry::{NewStreamRequest, Rerunnable, read_request};
use crate::exchange::Exchange;
use crate::resumable::Resumable;
use crate::setup::Rerun;
use crate::step_context::StepContext;

/// Most tools remembered; calls of further ones are not run again.
const TOOLS_MAX: usize = 1_000;

/// The tools that may be called twice, as far as known.
#[derive(Default)]
pub(crate) struct Tools {
    /// Hashes of their names, sorted: the names would take kilobytes in every session.
    twice: ThinVec<u64>,
    /// Is the list complete?
    is_complete: bool,
}

/// May a request be run a second time?
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Yes,
    No,
    /// The server's annotations are not known.
    Unknown,
}

impl Tools {
    /// Reads the annotations of one page of the list, if they decide anything.
    pub(crate) fn learn_page(&mut self, context: &StepContext<'_>, page: &ToolsPage) {
        if context.setup.rerun == Rerun::Annotated && !context.is_duplex() {
            self.add_page(page);
        }
    }

    fn add_page(&mut self, page: &ToolsPage) {
        for tool in &page.tools {
            let (hash, harmless) = (hash(&tool.name), tool.is_read_only || tool.is_idempotent);
            match self.twice.binary_search(&hash) {
                Err(at) if harmless && self.twice.len() < TOOLS_MAX => self.twice.insert(at, hash),
                Ok(at) if !harmless => {
                    self.twice.remove(at);
                }
                Ok(_) | Err(_) => {}
            }
        }
        // A client reads a list from its beginning. If it did not, a call is not run again
        // although it could be.
        self.is_complete |= page.next_cursor.is_none();
    }

    /// The list has changed.
    pub(crate) fn forget_tools(&mut self) {
        *self = Self::default();
    }

    /// May this request be run a second time?
    pub(crate) fn verdict(&self, context: &StepContext<'_>, request: &Request) -> Verdict {
        match (&request.method, context.setup.rerun) {
            _ if mutant!("run_everything_again") => Verdict::Yes,
            _ if mutant!("run_nothing_again") => Verdict::No,
            (method, _) if method.only_reads() => Verdict::Yes,
            (Method::ToolsCall, Rerun::Always) => Verdict::Yes,
            (Method::ToolsCall, Rerun::Annotated) => self.call_verdict(request),
            _ => Verdict::No,
        }
    }

    /// May a call of a tool be run a second time?
    fn call_verdict(&self, call: &Request) -> Verdict {
        let of_others = if self.is_complete { Verdict::No } else { Verdict::Unknown };
        // The name decides nothing, so it is not parsed.
        if self.twice.is_empty() {
            return of_others;
        }
        let name = call.params().and_then(|params| payload::name_of(&params));
        name.map_or(Verdict::No, |name| match self.twice.binary_search(&hash(&name)) {
            Ok(_) => Verdict::Yes,
            Err(_) => of_others,
        })
    }

    /// The request itself, if it may have to be written to the log.
    pub(crate) fn raw_to_keep(
        &self,
        context: &StepContext<'_>,
        request: &Request,
    ) -> Option<Bytes> {
        let is_short = request.raw().len() <= (context.limits().log_bytes_max / 256).max(512);
        let is_wanted =
            !context.is_duplex() && is_short && self.verdict(context, request) != Verdict::No;
        is_wanted.then(|| request.raw().clone())
    }

    /// What the log keeps of a request when its answer becomes a stream.
    pub(crate) fn new_stream_request(
        &self,
        context: &StepContext<'_>,
        exchange: &Exchange,
        is_resumable: bool,
    ) -> NewStreamRequest {
        let rerun = exchange.raw.clone().and_then(|raw| {
            let verdict = self.verdict(context, &read_request(&raw)?);
            let (sure, trace) = (verdict == Verdict::Yes, exchange.trace.clone());
            (verdict != Verdict::No).then_some(Rerunnable { raw, sure, trace })
        });
        let resumable = is_resumable.then(|| Resumable::of(exchange)).flatten();
        NewStreamRequest { id: exchange.id.clone(), rerun, resumable }
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_context::step_of_part;
    use crate::{Limits, Millis};

    #[test]
    fn a_tool_that_is_not_annotated_is_unknown_until_the_list_is_complete() {
        let params = br#"{"name":"add"}"#;
        let call = Request::new(1.into(), Method::ToolsCall, Some(params));
        let page = |result: &str| protocol::header_params::tools(result.as_bytes());
        let mut tools = Tools::default();
        step_of_part(Limits::default(), Millis(0), |context| {
            assert_eq!(tools.verdict(context, &call), Verdict::Unknown);
            tools.learn_page(context, &page(r#"{"tools":[],"nextCursor":"2"}"#));
            assert_eq!(tools.verdict(context, &call), Verdict::Unknown);
            let last = r#"{"tools":[{"name":"add","inputSchema":{},
                "annotations":{"idempotentHint":true}}]}"#;
            tools.learn_page(context, &page(last));
            assert_eq!(tools.verdict(context, &call), Verdict::Yes);
            tools.forget_tools();
            tools.learn_page(context, &page(r#"{"tools":[]}"#));
            assert_eq!(tools.verdict(context, &call), Verdict::No);
        });
    }
}
