//! Exchanges with servers that send what no server should send.

mod credential;
mod hostile;
mod server;
