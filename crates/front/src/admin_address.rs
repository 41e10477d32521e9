//! Where the listener for operators listens, and how it is bound there.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::bind::{BACKLOG, bind_tcp};

/// Precedes the path of a Unix socket.
const UNIX: &str = "unix:";

/// The permissions of a Unix socket: its owner may connect.
const MODE: u32 = 0o600;

/// An address of the listener for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AdminAddress {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket, to which only the user of the node can connect.
    Unix(PathBuf),
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        let address = match written.strip_prefix(UNIX) {
            Some(path) => Path::new(path).is_absolute().then(|| Self::Unix(path.into())),
            None => written.parse().ok().map(Self::Tcp),
        };
        address.ok_or_else(|| {
            format!(
                "{written:?} is no address of `admin.listen`; write an address and a port, as in \
                 127.0.0.1:9090, or `unix:` and the absolute path of a socket, as in \
                 unix:/run/roundhouse/admin.sock"
            )
        })
    }
}

impl TryFrom<String> for AdminAddress {
    type Error = String;

    fn try_from(written: String) -> Result<Self, String> {
        written.parse()
    }
}

impl From<AdminAddress> for String {
    fn from(address: AdminAddress) -> Self {
        address.to_string()
    }
}

impl From<SocketAddr> for AdminAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// A socket that listens. It does not block.
pub(crate) enum Bound {
    Tcp(TcpListener),
    /// The file is dropped first: the kernel may give its number to another file only when no socket
    /// is bound to it.
    Unix(SocketFile, UnixListener),
}

impl Bound {
    /// Binds a socket, and returns it with its address, in which port 0 is replaced.
    pub(crate) fn new(address: &AdminAddress) -> io::Result<(Self, AdminAddress)> {
        match address {
            AdminAddress::Tcp(address) => {
                let (listener, address) = bind_tcp(*address)?;
                listener.set_nonblocking(true)?;
                Ok((Self::Tcp(listener), address.into()))
            }
            AdminAddress::Unix(path) => {
                let listener = bind_unix(path)?;
                listener.set_nonblocking(true)?;
                Ok((Self::Unix(SocketFile::of(path)?, listener), address.clone()))
            }
        }
    }
}

/// The file of a Unix socket. Removed when this is dropped, unless another process has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

/// The device of a file, and its number there.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = match identity(&self.path) {
            Ok(found) if found == self.identity => std::fs::remove_file(&self.path),
            Ok(_) => {
                tracing::info!("another process has replaced the socket for operators; it stays");
                return;
            }
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::debug!(%error, "the socket for operators was not removed");
        }
    }
}

/// Binds a Unix socket to which only its owner can connect. The permissions are set before the
/// file exists, so that there is no moment at which others can connect.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux creates the file with the permissions of the socket, less the umask.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(MODE))?;
    rustix::net::bind(&socket, &address)?;
    // Other systems ignore the permissions of the socket.
    std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket of a process that has ended without removing it.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it")),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_address_and_a_port_or_the_absolute_path_of_a_socket() {
        for written in ["127.0.0.1:9090", "[::1]:0", "unix:/run/roundhouse/admin.sock"] {
            let address: AdminAddress = written.parse().unwrap();
            assert_eq!(address.to_string(), written);
        }
        for written in ["", "localhost:9090", "9090", "unix:", "unix:admin.sock", "/run/a.sock"] {
            let refusal = written.parse::<AdminAddress>().unwrap_err();
            assert!(refusal.contains("`admin.listen`"), "{refusal}");
            assert!(refusal.contains("unix:/run/"), "{refusal}");
        }
    }

    #[test]
    fn a_socket_is_for_its_owner_only_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let address = AdminAddress::Unix(path.clone());
        let (bound, _) = Bound::new(&address).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refusal = Bound::new(&address).err().unwrap();
        assert_eq!(refusal.kind(), io::ErrorKind::AddrInUse);
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_another_process_has_put_in_the_place_of_this_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let address = AdminAddress::Unix(path.clone());
        let (first, _) = Bound::new(&address).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (second, _) = Bound::new(&address).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_a_killed_process_left_is_replaced_and_another_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let address = AdminAddress::Unix(path.clone());
        drop(Bound::new(&address).unwrap());
        std::fs::write(&path, "precious").unwrap();
        assert!(Bound::new(&address).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
