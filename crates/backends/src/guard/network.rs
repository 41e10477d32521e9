//! A network that has only loopback.

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::namespaces;

/// `RTM_NEWLINK`: changes an interface.
const CHANGE_INTERFACE: u16 = 16;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const REQUEST_AND_ANSWER: u16 = 5;
/// `NLMSG_ERROR`, which is also the answer to a request that succeeded.
const ANSWER: u16 = 2;
/// The first interface of a network namespace is `lo`.
const LOOPBACK: i32 = 1;
/// `IFF_UP`.
const UP: u32 = 1;

/// Moves this process into a new network namespace and brings its loopback up.
pub(super) fn enter_empty() -> io::Result<()> {
    namespaces::unshare_network()?;
    // The protocol 0 is that of routes and interfaces.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &bring_up(LOOPBACK), SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    check_answer(&answer[..length])
}

/// A message to the kernel: a header of 16 bytes, then the interface and its flags.
fn bring_up(interface: i32) -> Vec<u8> {
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes());
    message.extend(CHANGE_INTERFACE.to_ne_bytes());
    message.extend(REQUEST_AND_ANSWER.to_ne_bytes());
    // The number of the message, and its sender: the kernel fills in the socket's.
    message.extend([0; 8]);
    // Address family and type: any.
    message.extend([0; 4]);
    message.extend(interface.to_ne_bytes());
    // The flags, and which of them to change.
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message
}

/// The kernel answers with an error number after the header, negative or 0.
fn check_answer(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
    let error =
        answer.get(16..20).and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
    match (kind, error) {
        (Some(ANSWER), Some(0)) => Ok(()),
        (Some(ANSWER), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(io::Error::other("the kernel's answer is not one")),
    }
}
