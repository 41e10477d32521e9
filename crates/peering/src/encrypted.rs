//! An encrypted connection. Any thread encrypts and sends; the connection's task decrypts.
//!
//! TLS keeps the keys of both directions in one value, so a lock guards it. It is held only while
//! bytes are encrypted or decrypted, never while bytes are sent or received. A thread that finds it
//! taken does not wait: the connection's task decrypts at that moment, and writes afterwards.

use std::io::{self, BufRead as _, Write as _};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use rustls::Connection;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite as _, ReadBuf};

use crate::socket::{Socket, SocketWriter};
use crate::wire::Written;

/// The most encrypted bytes that are received at once: a record of TLS.
const RECEIVED_BYTES: usize = 16 << 10;

/// The largest buffer of encrypted bytes that is kept for the next write.
const KEPT_BYTES: usize = 128 << 10;

/// A connection after its TLS handshake.
pub(crate) struct Encrypted {
    socket: Socket,
    writer: Arc<EncryptedWriter>,
    /// Received bytes that are not decrypted yet.
    received: BytesMut,
    /// Whether the other end has closed the TCP connection.
    is_over: bool,
}

/// The write half of an encrypted connection, for any thread. One thread writes at a time.
pub(crate) struct EncryptedWriter {
    socket: Arc<SocketWriter>,
    session: Mutex<Connection>,
    /// Encrypted bytes that the socket has not taken yet. Only the writing thread locks it, and the
    /// connection's task when TLS fails.
    ciphertext: Mutex<BytesMut>,
}

impl Encrypted {
    /// `session` has completed its handshake over this socket.
    pub(crate) fn new(socket: Socket, session: Connection) -> Self {
        let writer = EncryptedWriter {
            socket: socket.writer().clone(),
            session: Mutex::new(session),
            ciphertext: Mutex::default(),
        };
        Self { socket, writer: Arc::new(writer), received: BytesMut::new(), is_over: false }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn writer(&self) -> &Arc<EncryptedWriter> {
        &self.writer
    }

    /// Ends writing at the TCP connection.
    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    /// Decrypts received bytes until plain bytes are there. Returns whether the buffer has got some,
    /// or the other end has closed the TLS session.
    fn decrypt(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<bool> {
        let mut session = self.writer.session();
        loop {
            let mut plain = session.reader();
            match plain.fill_buf() {
                Ok(bytes) => {
                    let bytes = &bytes[..bytes.len().min(buffer.remaining())];
                    buffer.put_slice(bytes);
                    let read = bytes.len();
                    plain.consume(read);
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.received.is_empty() {
                return Ok(false);
            }
            let mut received = &self.received[..];
            let taken = session.read_tls(&mut received)?;
            self.received.advance(taken);
            if let Err(error) = session.process_new_packets() {
                drop(session);
                // Sends the alert; the connection ends in any case.
                let _ = self.writer.try_flush();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.decrypt(buffer)? {
                return Poll::Ready(Ok(()));
            }
            if this.is_over {
                // A process that was killed sends no close_notify. Frames and calls have ends of
                // their own, so a connection that was cut off loses no more than one that broke.
                return Poll::Ready(Ok(()));
            }
            this.received.reserve(RECEIVED_BYTES);
            let received = pin!(this.socket.read_buf(&mut this.received)).poll(context);
            this.is_over = ready!(received)? == 0;
        }
    }
}

impl EncryptedWriter {
    /// Encrypts as many bytes as TLS takes, and sends what the socket's buffer takes.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<Written> {
        let mut ciphertext = self.ciphertext();
        if !self.send(&mut ciphertext)? {
            return Ok(Written::Full);
        }
        let mut session = match self.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::WouldBlock) => return Ok(Written::Busy),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        let taken = session.writer().write(bytes)?;
        encrypted(&mut session, &mut ciphertext)?;
        drop(session);
        self.send(&mut ciphertext)?;
        Ok(Written::Bytes(taken))
    }

    /// Sends the encrypted bytes that are left. Returns whether the socket has taken all of them.
    pub(crate) fn try_flush(&self) -> io::Result<bool> {
        let mut ciphertext = self.ciphertext();
        // If the lock is taken, the connection's task decrypts, and flushes afterwards.
        if let Ok(mut session) = self.session.try_lock() {
            encrypted(&mut session, &mut ciphertext)?;
        }
        self.send(&mut ciphertext)
    }

    /// Ready when the socket is writable. Wakes only the latest caller.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_room(context)
    }

    /// Sends encrypted bytes. Returns whether the socket has taken all of them.
    fn send(&self, ciphertext: &mut BytesMut) -> io::Result<bool> {
        while !ciphertext.is_empty() {
            match self.socket.try_write(ciphertext)? {
                Some(sent) => ciphertext.advance(sent),
                None => return Ok(false),
            }
        }
        // A large buffer is not kept. The sent part of a small one can be used again.
        if ciphertext.try_reclaim(KEPT_BYTES + 1) {
            *ciphertext = BytesMut::new();
        }
        Ok(true)
    }

    fn session(&self) -> MutexGuard<'_, Connection> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ciphertext(&self) -> MutexGuard<'_, BytesMut> {
        self.ciphertext.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the records that TLS has made.
fn encrypted(session: &mut Connection, ciphertext: &mut BytesMut) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(&mut Records(ciphertext))?;
    }
    Ok(())
}

/// Appends records to a buffer.
struct Records<'a>(&'a mut BytesMut);

impl io::Write for Records<'_> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(record);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
