//! Bytes that are charged to a tenant, as their number changes.

use budget::Share;

/// What one session keeps in its catalog, charged to its tenant. Dropping it releases the bytes.
#[derive(Default)]
pub(crate) struct Charged {
    /// The share and the bytes that are charged to it.
    held: Option<(Share, usize)>,
}

impl Charged {
    /// Charges so many bytes in place of those before. `share` is asked for once; without one nothing is charged.
    pub(crate) fn set(&mut self, bytes: usize, share: impl FnOnce() -> Option<Share>) {
        if self.held.is_none() && bytes > 0 {
            self.held = share().map(|share| (share, 0));
        }
        let Some((share, charged)) = &mut self.held else { return };
        match bytes.checked_sub(*charged) {
            Some(more) => share.charge(more),
            None => share.release(*charged - bytes),
        }
        *charged = bytes;
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.set(0, || None);
    }
}
