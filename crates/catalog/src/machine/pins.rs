//! The machine's comparison of what servers say with what an operator has approved: requests for tools and
//! prompts of servers whose unapproved definitions are refused.

use std::sync::Arc;

use protocol::{Listed, Method, Named, Request, named_in_request};

use super::{Effect, Initialize, Machine, Report};
use crate::pins::{Part, Pinned};

/// Whether a request may be sent to its server.
pub(super) enum Approval {
    Given,
    /// That depends on a list of the server, which is being read.
    Awaits(Listed),
    /// For this reason.
    Refused(String),
}

impl Machine {
    /// Whether a request of the session, with the server's own name, may be sent to this server. It may not if
    /// no definition of the name is approved, or if the server lists it with another one.
    pub(super) fn approval(
        &mut self,
        now: u64,
        child: usize,
        request: &Request,
        effects: &mut Vec<Effect>,
    ) -> Approval {
        if !self.pins[child].refuses() {
            return Approval::Given;
        }
        let (listed, name) = match (&request.method, named_in_request(request)) {
            (Method::ToolsCall, Ok(Named::Tool(name))) => (Listed::Tool, name),
            (Method::PromptsGet, Ok(Named::Prompt(name))) => (Listed::Prompt, name),
            _ => return Approval::Given,
        };
        let is_known = self.pins[child].knows(listed, &name);
        if is_known {
            self.read_list(now, child, listed, effects);
            if self.children[child].is_reading(listed) {
                return Approval::Awaits(listed);
            }
        }
        let (what, server) = (Part::Entry(listed).as_str(), self.name(child));
        let why = match self.children[child].list(listed) {
            Some(list) if is_known && !list.refused.contains(&*name) => return Approval::Given,
            // A server need not have each list.
            None if is_known && !self.children[child].has_list(listed) => return Approval::Given,
            None if is_known => {
                return Approval::Refused(format!(
                    "the {what} `{name}` cannot be compared with its pinned definition: the server \
                     `{server}` did not send its list; try again later"
                ));
            }
            _ if is_known => "its definition is not the pinned one",
            _ => "no definition of it is pinned",
        };
        let text = format!(
            "the {what} `{name}` of the server `{server}` is not offered: {why}; an operator reviews it and \
             runs `roundhouse pin {}`",
            self.setup.name
        );
        effects.push(Effect::Report(Report::Withheld { child }));
        Approval::Refused(text)
    }

    /// Other definitions are approved from now on. What was read was compared with the former ones.
    pub(super) fn on_pins(&mut self, now: u64, pins: Arc<[Pinned]>, effects: &mut Vec<Effect>) {
        let former = std::mem::replace(&mut self.pins, pins);
        // Before the client has its answer, it has no list.
        let has_lists = matches!(self.initialize, Initialize::Answered);
        for child in 0..self.children.len() {
            if has_lists && former[child] != self.pins[child] {
                for listed in [Listed::Tool, Listed::Prompt] {
                    if self.children[child].has_list(listed) {
                        self.tell_change(now, child, listed, effects);
                    }
                }
            }
        }
    }
}
