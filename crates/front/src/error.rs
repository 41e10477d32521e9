//! Why the front did not start.

use std::io;

/// Why the front did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program uses the address, or it is not one of this machine.
    #[error("{address} cannot be listened on; free it, or choose another with `{setting}`")]
    Listen {
        /// The address.
        address: String,
        /// The setting that names the address.
        setting: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A setting has an invalid value.
    #[error("`{setting}` is {written:?}; {remedy}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        written: String,
        /// What a valid value looks like.
        remedy: String,
    },
}
