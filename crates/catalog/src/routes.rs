//! The server to which a request belongs, by what the request names.

use protocol::{ErrorCode, Method, Named, Request, named_in_request, payload};

use crate::member::{Kind, Members};

/// Where a request goes.
pub(crate) enum Route {
    /// To this server, with the server's own name.
    To { child: usize, request: Request },
    /// To the server that has this resource.
    Uri(String),
    /// Nowhere.
    Refused { code: ErrorCode, text: String },
}

/// Whether the server of a request is found by the lists.
pub(crate) fn needs_lists(request: &Request) -> bool {
    match request.method {
        Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => true,
        Method::Complete => matches!(named_in_request(request), Ok(Named::Resource(_))),
        _ => false,
    }
}

/// Where a request of the session goes.
pub(crate) fn of(members: &Members, request: &Request) -> Route {
    let named = match named_in_request(request) {
        Ok(named) => named,
        Err(ambiguous) => return refused(ErrorCode::InvalidRequest, &ambiguous.to_string()),
    };
    let (kind, name) = match &named {
        Named::Tool(name) => (Kind::Tool, name),
        Named::Prompt(name) => (Kind::Prompt, name),
        Named::Resource(uri) => return Route::Uri(uri.clone().into_owned()),
        Named::Method(_) | Named::Nothing if members.len() == 1 => {
            return Route::To { child: 0, request: request.clone() };
        }
        Named::Method(_) | Named::Nothing => {
            let text = format!("`{}` names no server of this endpoint", request.method);
            return refused(ErrorCode::MethodNotFound, &text);
        }
    };
    let Some((child, own)) = members.route(kind, name) else {
        let what = if kind == Kind::Tool { "tool" } else { "prompt" };
        let text = format!("this endpoint has no such {what}; list the {what}s again");
        return refused(ErrorCode::InvalidParams, &text);
    };
    if own.len() == name.len() {
        return Route::To { child, request: request.clone() };
    }
    let params = request.params().unwrap_or_default();
    let renamed = match request.method {
        Method::Complete => payload::with_reference_name(&params, own),
        _ => payload::with_name(&params, own),
    };
    match renamed {
        Some(params) => Route::To { child, request: request.with_params(&params) },
        None => refused(ErrorCode::InvalidParams, "the parameters are no object"),
    }
}

fn refused(code: ErrorCode, text: &str) -> Route {
    Route::Refused { code, text: text.to_owned() }
}
