//! Exchanges with servers that send what no server should send.

mod hostile;
mod server;
