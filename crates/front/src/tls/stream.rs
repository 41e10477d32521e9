//! A connection with TLS. Its first reads perform the handshake.
//!
//! The HTTP layer has the connection from its first byte, so all limits of a connection apply to a
//! handshake too. A handshake that fails is the end of the connection for the HTTP layer. Nothing that
//! HTTP writes before the handshake is complete is sent.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use rustls::{Error, HandshakeKind, InvalidMessage, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::{Accept, TlsStream as Encrypted};

use super::permits::HandshakePermit;
use crate::metrics::{Handshake as Outcome, count_handshake};
use crate::transport::Transport;

/// The first byte of a connection with TLS: a record of the handshake.
pub(crate) const HANDSHAKE: u8 = 22;

/// Most encrypted bytes that TLS keeps for a client that does not read.
const UNSENT_BYTES: usize = 32 << 10;

/// The answer to a request without TLS.
const NO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 54\r\nconnection: close\r\n\r\n\
    this port serves HTTP over TLS only; write https://...";

/// A fatal alert, `access_denied`: for a client whose connection is not served.
const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

/// A connection with TLS.
pub(crate) struct TlsStream(State);

enum State {
    Handshake(Box<Handshake>),
    Open(Box<Encrypted<TcpStream>>),
    /// The handshake failed, and the socket is closed.
    Failed,
}

struct Handshake {
    accept: Accept<TcpStream>,
    permit: HandshakePermit,
    /// A byte has arrived.
    has_begun: bool,
    is_counted: bool,
}

impl TlsStream {
    pub(super) fn new(
        stream: TcpStream,
        config: Arc<ServerConfig>,
        permit: HandshakePermit,
    ) -> Self {
        let accept = TlsAcceptor::from(config).accept_with(stream, |session| {
            session.set_buffer_limit(Some(UNSENT_BYTES));
        });
        Self(State::Handshake(Box::new(Handshake {
            accept,
            permit,
            has_begun: false,
            is_counted: false,
        })))
    }
}

impl Handshake {
    /// Goes on with the handshake; `None` if it failed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Encrypted<TcpStream>>> {
        match self.poll_first_byte(context) {
            // Nothing is to be computed. A part of the handshake may be left to write.
            Poll::Pending => {}
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(HANDSHAKE)) => {
                self.has_begun = true;
                ready!(self.permit.poll(context));
            }
            Poll::Ready(Some(_)) if self.has_begun => ready!(self.permit.poll(context)),
            Poll::Ready(Some(_)) => {
                self.answer_without_tls();
                self.count(Outcome::NotTls);
                return Poll::Ready(None);
            }
        }
        Poll::Ready(match ready!(Pin::new(&mut self.accept).poll(context)) {
            Ok(stream) => {
                self.count(match stream.get_ref().1.handshake_kind() {
                    Some(HandshakeKind::Resumed) => Outcome::Resumed,
                    _ => Outcome::Completed,
                });
                Some(stream)
            }
            Err(error) => {
                self.count(outcome(&error));
                None
            }
        })
    }

    /// The next byte that the socket has, which stays there. `None` if the connection has ended.
    fn poll_first_byte(&self, context: &mut Context<'_>) -> Poll<Option<u8>> {
        let Some(stream) = self.accept.get_ref() else { return Poll::Ready(None) };
        let mut byte = [0];
        let peeked = ready!(stream.poll_peek(context, &mut ReadBuf::new(&mut byte)));
        Poll::Ready(matches!(peeked, Ok(1)).then_some(byte[0]))
    }

    fn answer_without_tls(&mut self) {
        let Some(stream) = self.accept.get_mut() else { return };
        // If a socket is closed with bytes that were not read, the kernel drops the answer.
        let _ = stream.try_read(&mut [0; 4 << 10]);
        stream.write_last(NO_TLS);
    }

    fn count(&mut self, outcome: Outcome) {
        self.is_counted = true;
        count_handshake(outcome);
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if !self.is_counted {
            count_handshake(Outcome::Unfinished);
        }
    }
}

/// Why a handshake failed.
fn outcome(error: &io::Error) -> Outcome {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    match of_tls {
        None => Outcome::Unfinished,
        Some(Error::AlertReceived(_)) => Outcome::RefusedByClient,
        Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => Outcome::Incompatible,
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Outcome::NotTls,
        Some(_) => Outcome::Invalid,
    }
}

impl Transport for TlsStream {
    const HAS_HANDSHAKE: bool = true;

    fn is_in_handshake(&self) -> bool {
        matches!(&self.0, State::Handshake(handshake) if handshake.has_begun)
    }

    fn write_last(&mut self, answer: &[u8]) {
        // No task waits for the rest.
        let mut context = Context::from_waker(Waker::noop());
        match &mut self.0 {
            State::Handshake(handshake) => {
                if let Some(stream) = handshake.accept.get_mut() {
                    stream.write_last(ACCESS_DENIED);
                }
            }
            State::Open(stream) => {
                let mut stream = Pin::new(&mut **stream);
                let _ = stream.as_mut().poll_write(&mut context, answer);
                let _ = stream.poll_flush(&mut context);
            }
            State::Failed => {}
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &mut self.get_mut().0;
        if let State::Handshake(handshake) = state {
            let open = ready!(handshake.poll(context));
            *state = open.map_or(State::Failed, |stream| State::Open(Box::new(stream)));
        }
        let State::Open(stream) = state else { return Poll::Ready(Ok(())) };
        match ready!(Pin::new(&mut **stream).poll_read(context, into)) {
            // The client has closed the socket, and not TLS before it. A request has an end of its
            // own, so none is taken for whole that was cut off.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => Poll::Ready(read),
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            State::Open(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
            State::Handshake(_) | State::Failed => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            State::Open(stream) => Pin::new(&mut **stream).poll_flush(context),
            State::Handshake(_) | State::Failed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            State::Open(stream) => Pin::new(&mut **stream).poll_shutdown(context),
            State::Handshake(_) | State::Failed => Poll::Ready(Ok(())),
        }
    }
}

impl fmt::Debug for TlsStream {
    /// Omits what is encrypted, and the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").finish_non_exhaustive()
    }
}
