//! The thread of the connections to Redis.
//!
//! A command is copied twice before the kernel has it: into the text of its write, and into the buffer
//! of the connection. A log entry can have megabytes, for which that takes milliseconds. On this thread they
//! delay only other commands, which wait for these bytes in any case. On the thread of the caller they would
//! delay all that it serves: a worker's clients, or the links of peers.

use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime for connections. Both end when this is dropped, with all that runs there.
pub(super) struct RedisThread {
    runtime: Handle,
    _until: oneshot::Sender<()>,
}

impl RedisThread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (until, dropped) = oneshot::channel::<()>();
        thread::Builder::new().name("redis".into()).spawn(move || {
            let _dropped = runtime.block_on(dropped);
        })?;
        Ok(Self { runtime: handle, _until: until })
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
