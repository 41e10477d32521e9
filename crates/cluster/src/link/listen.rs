//! Takes links of peers.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service;

use super::answering::Answering;
use super::frame::Frame;
use super::guests::{Guests, Visit};
use super::{Codec, FLOW_BYTES, FRAME_OVERHEAD_BYTES, PATH};
use crate::node::Node;

/// Links on one connection: one, and one more while the peer makes it anew.
const LINKS_PER_CONNECTION_MAX: u32 = 2;

/// Listens until the node closes its links.
pub(crate) async fn listen(node: Arc<Node>, listener: TcpListener) {
    let incoming = Guests::new(listener, node.clone());
    let closing = node.closing.clone();
    let served = Server::builder()
        .http2_keepalive_interval(Some(node.settings.ping()))
        .http2_keepalive_timeout(Some(node.settings.pong()))
        .initial_stream_window_size(FLOW_BYTES)
        .initial_connection_window_size(FLOW_BYTES)
        .max_concurrent_streams(LINKS_PER_CONNECTION_MAX)
        .serve_with_incoming_shutdown(Listening(node), incoming, closing.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the peer link does not listen any more; restart this node");
    }
}

#[derive(Clone)]
struct Listening(Arc<Node>);

impl Service<http::Request<Body>> for Listening {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future =
        Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send + 'static>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PATH {
            let response = Status::unimplemented("a peer does not ask for that").into_http();
            return Box::pin(ready(Ok(response)));
        }
        let node = self.0.clone();
        let frame_bytes = node.settings.message_bytes_max.saturating_add(FRAME_OVERHEAD_BYTES);
        let mut grpc = Grpc::new(Codec::default())
            .max_decoding_message_size(frame_bytes)
            .max_encoding_message_size(frame_bytes);
        Box::pin(async move { Ok(grpc.streaming(Answer(node), request).await) })
    }
}

struct Answer(Arc<Node>);

impl Service<Request<Streaming<Frame>>> for Answer {
    type Response = Response<Answering<Streaming<Frame>>>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<Frame>>) -> Self::Future {
        let node = self.0.clone();
        let closing = node.closing.clone();
        let Some(visit) = visit(&request) else {
            return ready(Err(Status::internal("a connection that nobody accepted")));
        };
        ready(Ok(Response::new(Answering::new(node, visit, request.into_inner(), &closing))))
    }
}

/// The connection that a request came on.
fn visit<T>(request: &Request<T>) -> Option<Visit> {
    request.extensions().get::<Visit>().cloned()
}
