//! Decodes a client's messages directly into `rmcp`'s types.
//!
//! `rmcp`'s own decoder buffers a message and tries one type after another. This module selects
//! the type by the method; only methods outside the handshake revisions are left to `rmcp`.
//! Invalid parameters are refused as such (RPC-13), while `rmcp` would report an unknown method.

#![expect(deprecated, reason = "rmcp deprecates logging, which the handshake revisions have")]

use ::rmcp::ErrorData;
use ::rmcp::model::{
    self, CallToolRequestMethod, CallToolRequestParams, ClientNotification, ClientRequest,
    ClientResult, CompleteRequestMethod, CompleteRequestParams, Extensions, GetExtensions, GetMeta,
    GetPromptRequestMethod, GetPromptRequestParams, InitializeRequestParams,
    InitializeResultMethod, InitializedNotification, ListPromptsRequestMethod,
    ListResourceTemplatesRequestMethod, ListResourcesRequestMethod, ListToolsRequestMethod,
    NumberOrString, PaginatedRequestParams, PingRequest, ReadResourceRequestMethod,
    ReadResourceRequestParams, RequestMetaObject, RequestOptionalParam, RequestParamsMeta,
    SetLevelRequestMethod, SetLevelRequestParams, SubscribeRequestMethod, SubscribeRequestParams,
    UnsubscribeRequestMethod, UnsubscribeRequestParams,
};
use protocol::{Method, Notification, Request, RequestId, Response};
use serde::de::DeserializeOwned;

/// A decoded request for a service, with its metadata separate.
pub(super) struct DecodedRequest {
    pub(super) request: ClientRequest,
    pub(super) meta: RequestMetaObject,
    pub(super) extensions: Extensions,
}

pub(super) fn request(request: &Request) -> Result<DecodedRequest, ErrorData> {
    match request.method {
        Method::Initialize => params::<InitializeResultMethod, InitializeRequestParams>(request),
        Method::Ping => Ok(plain(PingRequest::default().into())),
        Method::ToolsCall => params::<CallToolRequestMethod, CallToolRequestParams>(request),
        Method::ToolsList => page::<ListToolsRequestMethod>(request),
        Method::ResourcesList => page::<ListResourcesRequestMethod>(request),
        Method::ResourceTemplatesList => page::<ListResourceTemplatesRequestMethod>(request),
        Method::ResourcesRead => {
            params::<ReadResourceRequestMethod, ReadResourceRequestParams>(request)
        }
        Method::Subscribe => params::<SubscribeRequestMethod, SubscribeRequestParams>(request),
        Method::Unsubscribe => {
            params::<UnsubscribeRequestMethod, UnsubscribeRequestParams>(request)
        }
        Method::PromptsList => page::<ListPromptsRequestMethod>(request),
        Method::PromptsGet => params::<GetPromptRequestMethod, GetPromptRequestParams>(request),
        Method::Complete => params::<CompleteRequestMethod, CompleteRequestParams>(request),
        Method::SetLevel => params::<SetLevelRequestMethod, SetLevelRequestParams>(request),
        _ => other(request),
    }
}

fn plain(request: ClientRequest) -> DecodedRequest {
    DecodedRequest {
        request,
        meta: RequestMetaObject::default(),
        extensions: Extensions::default(),
    }
}

fn params<M, P>(request: &Request) -> Result<DecodedRequest, ErrorData>
where
    M: Default,
    P: DeserializeOwned + RequestParamsMeta,
    ClientRequest: From<model::Request<M, P>>,
{
    let text = request.params();
    let mut params: P = typed(text.as_deref().unwrap_or(b"{}"))?;
    // A service reads the metadata from its context, as with any transport of `rmcp`.
    let meta = params.meta_mut().take().unwrap_or_default();
    Ok(DecodedRequest { meta, ..plain(model::Request::<M, P>::new(params).into()) })
}

fn page<M: Default>(request: &Request) -> Result<DecodedRequest, ErrorData>
where
    ClientRequest: From<RequestOptionalParam<M, PaginatedRequestParams>>,
{
    let text = request.params();
    let mut params = match text.as_deref() {
        None => None,
        Some(text) => Some(typed::<PaginatedRequestParams>(text)?),
    };
    let meta = params.as_mut().and_then(|params| params.meta_mut().take()).unwrap_or_default();
    let (method, extensions) = (M::default(), Extensions::default());
    let request = RequestOptionalParam { method, params, extensions };
    Ok(DecodedRequest { meta, ..plain(request.into()) })
}

fn other(request: &Request) -> Result<DecodedRequest, ErrorData> {
    let mut request: ClientRequest = typed(request.raw())?;
    let meta = std::mem::take(request.get_meta_mut());
    let extensions = std::mem::take(request.extensions_mut());
    Ok(DecodedRequest { request, meta, extensions })
}

fn typed<T: DeserializeOwned>(json: &[u8]) -> Result<T, ErrorData> {
    serde_json::from_slice(json).map_err(|error| ErrorData::invalid_params(error.to_string(), None))
}

/// Decodes a notification; `None` if `rmcp` has no type for it.
pub(super) fn notification(notification: &Notification) -> Option<ClientNotification> {
    match notification.method {
        Method::Initialized => Some(InitializedNotification::default().into()),
        _ => serde_json::from_slice(notification.raw()).ok(),
    }
}

/// Decodes the client's response to a server request.
pub(super) fn answer(response: &Response) -> Result<ClientResult, ErrorData> {
    match response.outcome() {
        Ok(result) => serde_json::from_slice(&result).map_err(|_| {
            ErrorData::internal_error("the client's response cannot be decoded", None)
        }),
        Err(error) => Err(serde_json::from_slice(&error).unwrap_or_else(|_| {
            ErrorData::internal_error("the client answered with a malformed error", None)
        })),
    }
}

pub(super) fn id(id: &RequestId) -> NumberOrString {
    match id {
        RequestId::Number(number) => NumberOrString::Number(*number),
        RequestId::String(text) => NumberOrString::String(text.clone()),
    }
}
