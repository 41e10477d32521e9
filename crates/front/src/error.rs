//! Why the front did not start.

use std::io;
use std::net::SocketAddr;

/// Why the front did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program listens there, or it is not an address of this machine.
    #[error("{address} cannot be listened on; free it, or choose another with `{setting}`")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The setting that names the address.
        setting: &'static str,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A setting is not what it must be.
    #[error("`{setting}` is `{written}`; {remedy}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What stands there.
        written: String,
        /// What should.
        remedy: &'static str,
    },
}
