//! Binds the sockets of the two listeners.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that the kernel queues until they are accepted. Beyond it, a client's kernel
/// retries the connect after a second or more. When another node has died, all its clients
/// connect at once. The value is Linux' default limit (`net.core.somaxconn`).
pub(crate) const BACKLOG: i32 = 4_096;

/// Binds a TCP socket that queues up to [`BACKLOG`] connections, and returns it with its address,
/// in which port 0 is replaced.
pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    // The standard library asks for 128. A second call of `listen` changes only the queue.
    rustix::net::listen(&listener, BACKLOG)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// How many connections the kernel queues at a listener, up to 300: a queue at its bound leaves
    /// further connects unanswered.
    fn queued(listener: &TcpListener) -> usize {
        let address = listener.local_addr().unwrap();
        let wait = std::time::Duration::from_millis(200);
        let connects = (0..300).map_while(|_| TcpStream::connect_timeout(&address, wait).ok());
        connects.collect::<Vec<_>>().len()
    }

    #[test]
    fn more_connections_are_queued_than_the_standard_library_asks_for() {
        let (listener, address) = bind_tcp(([127, 0, 0, 1], 0).into()).unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        assert_eq!(queued(&listener), 300);
    }
}
