//! Something between two nodes that can swallow what they say to each other, or cut them off.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What becomes of what is said.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Passes,
    /// Nothing comes through, and both ends stay open.
    Swallows,
    /// Every connection is reset at these ends and forgotten at the others; new ones are
    /// refused at the near end.
    Cuts {
        near: bool,
        far: bool,
    },
}

/// A pipe with a listener at its near end.
pub(super) struct Between {
    pub(super) address: String,
    far: watch::Sender<Option<SocketAddr>>,
    mood: Arc<watch::Sender<Mood>>,
}

impl Between {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let far = watch::Sender::new(None);
        let mood = Arc::new(watch::Sender::new(Mood::Passes));
        tokio::spawn(accept(listener, address, far.subscribe(), mood.clone()));
        Self { address: address.to_string(), far, mood }
    }

    pub(super) fn lead_to(&self, far: SocketAddr) {
        self.far.send_replace(Some(far));
    }

    /// From now on nothing comes through any more.
    pub(super) fn swallow(&self) {
        self.mood.send_replace(Mood::Swallows);
    }

    /// Resets every connection, as a firewall does that is loaded anew, and refuses new ones.
    pub(super) fn cut(&self) {
        self.mood.send_replace(Mood::Cuts { near: true, far: true });
    }

    /// The same, and who was called hears nothing of it.
    pub(super) fn cut_near(&self) {
        self.mood.send_replace(Mood::Cuts { near: true, far: false });
    }

    /// The same, and who called hears nothing of it.
    pub(super) fn cut_far(&self) {
        self.mood.send_replace(Mood::Cuts { near: false, far: true });
    }

    /// What comes from now on comes through.
    pub(super) fn mend(&self) {
        self.mood.send_replace(Mood::Passes);
    }
}

async fn accept(
    first: TcpListener,
    address: SocketAddr,
    mut far: watch::Receiver<Option<SocketAddr>>,
    mood: Arc<watch::Sender<Mood>>,
) {
    let mut moods = mood.subscribe();
    let mut listener = Some(first);
    loop {
        let refuses = matches!(*moods.borrow_and_update(), Mood::Cuts { .. });
        if refuses {
            listener = None;
            moods.changed().await.unwrap();
            continue;
        }
        if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.unwrap());
        }
        let near = tokio::select! {
            accepted = listener.as_ref().unwrap().accept() => accepted.unwrap().0,
            _ = moods.changed() => continue,
        };
        let address = far.wait_for(Option::is_some).await.unwrap().unwrap();
        let Ok(far) = TcpStream::connect(address).await else { continue };
        tokio::spawn(carry(near, far, mood.subscribe()));
    }
}

async fn carry(mut near: TcpStream, mut far: TcpStream, mut moods: watch::Receiver<Mood>) {
    let mut buffers = [[0; 4096]; 2];
    loop {
        let [there, back] = &mut buffers;
        let mood = *moods.borrow_and_update();
        let passes = mood == Mood::Passes;
        if let Mood::Cuts { near: resets_near, far: resets_far } = mood {
            for (end, resets) in [(&near, resets_near), (&far, resets_far)] {
                if resets {
                    end.set_zero_linger().unwrap();
                }
            }
            let _kept = [(near, resets_near), (far, resets_far)]
                .map(|(end, resets)| if resets { None } else { Some(end) });
            return pending().await;
        }
        let whole = tokio::select! {
            read = near.read(there), if passes => pass(read, there, &mut far).await,
            read = far.read(back), if passes => pass(read, back, &mut near).await,
            _ = moods.changed() => true,
        };
        if !whole {
            return;
        }
    }
}

/// Passes on what was read; false where there is nothing more, or nobody to take it.
async fn pass(read: io::Result<usize>, buffer: &[u8], to: &mut TcpStream) -> bool {
    let read = read.unwrap_or(0);
    read > 0 && to.write_all(&buffer[..read]).await.is_ok()
}
