//! The link between two nodes: one stream each way of calling, made as soon as one knows
//! of the other, and kept.

pub(crate) mod answering;
pub(crate) mod calls;
pub(crate) mod dial;
pub(crate) mod frame;
mod guests;
pub(crate) mod listen;
mod proof;
pub(crate) mod socket;
mod suspicion;
pub(crate) mod tls;
mod wire;

use bytes::Bytes;
use tonic_prost::ProstCodec;

use self::frame::Frame;

/// The one method of the peer link.
const PATH: &str = "/roundhouse.Peer/Link";

/// How much may be under way on a link before its reader has taken it, in bytes. The
/// reader always takes all, so this only has to be enough for the network.
const FLOW_BYTES: u32 = 4 << 20;

/// Room in a frame beside its message.
const FRAME_OVERHEAD_BYTES: usize = 64;

type Codec = ProstCodec<Frame, Frame>;

fn nonce() -> Result<Bytes, getrandom::Error> {
    let mut nonce = [0; proof::NONCE_BYTES];
    getrandom::fill(&mut nonce)?;
    Ok(Bytes::copy_from_slice(&nonce))
}
