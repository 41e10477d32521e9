//! MCP servers written in Rust that run inside the node.
//!
//! A [`Handler`] receives a method and raw parameters and returns a raw result. It never
//! sees an envelope, an id or a revision. The task that polls the link's events (the session's
//! actor) polls the handler's futures too, so a call that is ready at once needs no task and no
//! wake-up. Other threads poll the futures for long messages. A handler that blocks delays every session of the same thread. Long work belongs on
//! `tokio::task::spawn_blocking` or a task of its own.

mod engine;
mod peer;

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use protocol::{ErrorCode, Method, Notification, Request, Response, SessionId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::peer::ClientChannel;
pub use self::peer::Peer;
use crate::{Backend, Link, LinkLimits};

/// Maximum number of concurrent calls and notifications of one session. A further call is
/// answered with an error; a further notification is dropped.
pub const CALLS_MAX: usize = 256;

/// An MCP server in the process of the node, shared by all sessions of a backend.
///
/// The futures for a message of more than 64 KiB are polled by threads of a lower priority, within the runtime of the
/// session but outside of its `LocalSet`: `tokio::task::spawn_local` panics there, which is answered with -32603. Use
/// `tokio::spawn`, or a thread with a `LocalSet` of its own for what is not `Send`.
pub trait Handler: Send + Sync + 'static {
    /// Name, version and capabilities of the server; the answer to `initialize`.
    fn info(&self) -> Info;

    /// Answers a request other than `initialize` and `ping`. The result is JSON text, which is
    /// sent without a check. The future is dropped when the client cancels the request or the
    /// session ends. A panic is answered with -32603 and does not affect other calls.
    fn call(&self, call: Call) -> impl Future<Output = Result<Bytes, Error>> + Send;

    /// Handles a notification of the client other than `notifications/cancelled`.
    fn notified(&self, notice: Notice) -> impl Future<Output = ()> + Send {
        let _ = notice;
        async {}
    }

    /// Called when the session has ended, so that the handler can free its state. The futures of
    /// the session are dropped before. If one of them handles a long message at that moment, another thread calls this
    /// when the poll of it has ended.
    fn closed(&self, session: &SessionId) {
        let _ = session;
    }
}

/// Name, version and capabilities of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    name: Cow<'static, str>,
    version: Cow<'static, str>,
    capabilities: Cow<'static, str>,
    instructions: Option<Cow<'static, str>>,
}

impl Info {
    /// A server without capabilities.
    pub fn new(name: impl Into<Cow<'static, str>>, version: impl Into<Cow<'static, str>>) -> Self {
        let (name, version) = (name.into(), version.into());
        Self { name, version, capabilities: "{}".into(), instructions: None }
    }

    /// Sets the capabilities: the JSON text of `capabilities`, such as `{"tools":{}}`.
    pub fn capabilities(mut self, json: impl Into<Cow<'static, str>>) -> Self {
        self.capabilities = json.into();
        self
    }

    /// Sets the instructions for a model that uses the server.
    pub fn instructions(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.instructions = Some(text.into());
        self
    }
}

/// One request of the client.
#[derive(Clone)]
pub struct Call {
    request: Request,
    channel: Arc<ClientChannel>,
}

impl Call {
    /// The session of the request.
    pub fn session(&self) -> &SessionId {
        &self.channel.session
    }

    /// The method of the request.
    pub fn method(&self) -> &Method {
        &self.request.method
    }

    /// The parameters' JSON text, always an object.
    pub fn params(&self) -> Option<Bytes> {
        self.request.params()
    }

    /// Deserialises the parameters. The error can be returned from [`Handler::call`].
    pub fn params_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        read(self.params())
    }

    /// The whole request.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Sends messages to the client that belong to this request.
    pub fn peer(&self) -> Peer {
        Peer::for_request(Arc::clone(&self.channel), self.request.clone())
    }
}

/// One notification of the client.
#[derive(Clone)]
pub struct Notice {
    notification: Notification,
    channel: Arc<ClientChannel>,
}

impl Notice {
    /// The session of the notification.
    pub fn session(&self) -> &SessionId {
        &self.channel.session
    }

    /// The method of the notification.
    pub fn method(&self) -> &Method {
        &self.notification.method
    }

    /// The parameters' JSON text, always an object.
    pub fn params(&self) -> Option<Bytes> {
        self.notification.params()
    }

    /// Deserialises the parameters.
    pub fn params_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        read(self.params())
    }

    /// Sends messages to the client that belong to no request. It may be kept until the session
    /// ends.
    pub fn peer(&self) -> Peer {
        Peer::without_request(Arc::clone(&self.channel))
    }
}

fn read<T: DeserializeOwned>(params: Option<Bytes>) -> Result<T, Error> {
    let params = params.as_deref().unwrap_or(b"{}");
    serde_json::from_slice(params).map_err(|error| Error::invalid_params(error.to_string()))
}

/// The JSON text of a result.
pub fn json<T: Serialize + ?Sized>(result: &T) -> Result<Bytes, Error> {
    let text = serde_json::to_vec(result);
    text.map(Bytes::from).map_err(|_| Error::internal("the result cannot be written as JSON"))
}

/// A JSON-RPC error, as a handler returns one or a client answers with one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Error {
    /// The JSON-RPC error code.
    pub code: i32,
    /// The message, which is sent to the client.
    pub message: Cow<'static, str>,
    /// Additional data, as JSON text.
    pub data: Option<Bytes>,
}

impl Error {
    /// An error without data.
    pub fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// -32601: the method is unknown.
    pub fn method_not_found(method: &Method) -> Self {
        Self::new(ErrorCode::MethodNotFound.number(), format!("unknown method: {method}"))
    }

    /// -32602: the parameters do not fit the method.
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidParams.number(), message)
    }

    /// -32603: the server failed.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InternalError.number(), message)
    }

    /// Decodes the error object of a response.
    fn from_object(object: &[u8]) -> Self {
        #[derive(serde::Deserialize)]
        struct Object<'a> {
            code: i64,
            #[serde(borrow)]
            message: Cow<'a, str>,
            #[serde(borrow)]
            data: Option<&'a serde_json::value::RawValue>,
        }
        let Ok(object) = serde_json::from_slice::<Object<'_>>(object) else {
            return Self::internal("the client answered with a malformed error");
        };
        Self {
            code: i32::try_from(object.code).unwrap_or(ErrorCode::InternalError.number()),
            message: object.message.into_owned().into(),
            data: object.data.map(|data| Bytes::copy_from_slice(data.get().as_bytes())),
        }
    }

    fn answering(&self, request: protocol::RequestId) -> Response {
        Response::error(Some(request), self.code, &self.message, self.data.as_deref())
    }
}

/// Serves a [`Handler`] to every session that opens a link.
///
/// ```
/// use backends::native::{self, Call, Error, Handler, Info, NativeBackend};
///
/// struct Greeter;
///
/// impl Handler for Greeter {
///     fn info(&self) -> Info {
///         Info::new("greeter", "1.0.0").capabilities(r#"{"tools":{}}"#)
///     }
///
///     async fn call(&self, call: Call) -> Result<bytes::Bytes, Error> {
///         match call.method().as_str() {
///             "tools/list" => native::json(&serde_json::json!({ "tools": [] })),
///             _ => Err(Error::method_not_found(call.method())),
///         }
///     }
/// }
///
/// let backend = NativeBackend::new(Greeter);
/// ```
#[derive(Clone)]
pub struct NativeBackend {
    served: Arc<dyn Served>,
    limits: LinkLimits,
}

impl NativeBackend {
    /// Creates a backend for the handler.
    pub fn new(handler: impl Handler) -> Self {
        Self { served: Arc::new(handler), limits: LinkLimits::default() }
    }

    /// Sets the bounds of the links.
    pub fn with_limits(mut self, limits: LinkLimits) -> Self {
        self.limits = limits;
        self
    }
}

impl Backend for NativeBackend {
    fn open(&self, session: &SessionId) -> Link {
        Link::in_place(self.limits, |end, receiver| {
            let channel = ClientChannel::new(session.clone(), end.sender());
            Box::new(engine::InPlace::new(Arc::clone(&self.served), channel, end, receiver))
        })
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A [`Handler`] as a trait object.
trait Served: Send + Sync {
    fn info(&self) -> Info;
    fn call(self: Arc<Self>, call: Call) -> Boxed<Result<Bytes, Error>>;
    fn notified(self: Arc<Self>, notice: Notice) -> Boxed<()>;
    fn closed(&self, session: &SessionId);
}

impl<H: Handler> Served for H {
    fn info(&self) -> Info {
        Handler::info(self)
    }

    fn call(self: Arc<Self>, call: Call) -> Boxed<Result<Bytes, Error>> {
        Box::pin(async move { Handler::call(&*self, call).await })
    }

    fn notified(self: Arc<Self>, notice: Notice) -> Boxed<()> {
        Box::pin(async move { Handler::notified(&*self, notice).await })
    }

    fn closed(&self, session: &SessionId) {
        Handler::closed(self, session);
    }
}

#[cfg(test)]
mod tests;
