//! Whether a request for a tool or a prompt may be sent to its server: what the server says of it is compared
//! with what an operator has approved.

use protocol::{Listed, Method, Named, Request, named_in_request};

use crate::child::Child;
use crate::pins::{Part, Pinned};

/// Whether a request may be sent to its server.
pub(crate) enum Approval {
    Given,
    /// That depends on this list of the server, which has to be read.
    Awaits(Listed),
    /// It may not, for this reason, until an operator approves it. The text names the request.
    Refused(String),
    /// It may not: the list did not come. The text names the request.
    Unread(String),
}

impl Approval {
    /// That of a request with the server's own name. It is refused if no definition of the name is approved, or
    /// if the server lists it with another one.
    pub(crate) fn of(pinned: &Pinned, child: &Child, now: u64, request: &Request) -> Self {
        if !pinned.refuses() {
            return Self::Given;
        }
        let (listed, name) = match (&request.method, named_in_request(request)) {
            (Method::ToolsCall, Ok(Named::Tool(name))) => (Listed::Tool, name),
            (Method::PromptsGet, Ok(Named::Prompt(name))) => (Listed::Prompt, name),
            _ => return Self::Given,
        };
        let what = Part::Entry(listed).as_str();
        if !pinned.knows(listed, &name) {
            return Self::Refused(format!("{what} `{name}`: no definition of it is pinned"));
        }
        if child.wants_list(now, listed) || child.is_reading(listed) {
            return Self::Awaits(listed);
        }
        match child.list(listed) {
            Some(list) if list.refused.contains(&*name) => {
                Self::Refused(format!("{what} `{name}`: its definition is not the pinned one"))
            }
            Some(_) => Self::Given,
            // A server need not have each list.
            None if !child.has_list(listed) => Self::Given,
            None => Self::Unread(format!(
                "{what} `{name}`: it did not send its list, to be compared with pins"
            )),
        }
    }
}
