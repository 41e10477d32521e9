//! Helpers of the tests on Redis servers: sessions, waits, and stores.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;
use store::redis::{Redis, Settings};
use store::{
    Appended, Batch, Claimed, Digest, Error, Expected, Incarnation, Lease, Owner, Primary, Record,
    RecordStatus, State, Store, Token,
};

/// A time to live that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Opens a store on this URL, with a short timeout.
pub(crate) fn open(url: &str) -> Redis {
    open_with(Settings::at(url))
}

pub(crate) fn open_with(settings: Settings) -> Redis {
    Redis::open(settings).expect("the settings are right")
}

/// One session and its owner.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) owner: Owner,
    pub(crate) record: Record,
}

impl Session {
    pub(crate) fn new() -> Self {
        Self::named(&format!("{:016x}{:016x}", random(), random()))
    }

    pub(crate) fn named(id: &str) -> Self {
        let owner = Owner { token: Token::first(random()), node: Incarnation(random()) };
        let record = Record {
            owner,
            former: Vec::new(),
            tenant: "acme".into(),
            principal: Digest([7; 32]),
            revision: "2025-11-25".into(),
            initialize: (*br#"{"capabilities":{}}"#).into(),
            state: State { version: 1, bytes: (*b"one").into() },
            status: RecordStatus::Owned,
        };
        Self { id: SessionId::parse(id).expect("a valid id"), owner, record }
    }

    /// A session that is in the store.
    pub(crate) async fn made(store: &Redis) -> Self {
        let session = Self::new();
        session.make(store).await.expect("a new session is made");
        session
    }

    pub(crate) async fn make(&self, store: &Redis) -> Result<(), Error> {
        store.create(&self.id, self.record.clone(), LONG).await
    }

    /// A batch with an entry for each word, numbered from `first` on; all are replayable.
    pub(crate) fn batch(&self, first: u64, words: &str) -> Batch {
        let own = |word: &str| Bytes::copy_from_slice(word.as_bytes());
        Batch {
            session: self.id.clone(),
            token: self.owner.token,
            first,
            floor: 1,
            entries: words.split_whitespace().map(own).collect(),
            ttl: LONG,
            prolongs: true,
        }
    }

    pub(crate) async fn append(
        &self,
        store: &Redis,
        first: u64,
        words: &str,
    ) -> Result<Appended, Error> {
        store.append(self.batch(first, words)).await
    }

    /// Repeats the append until its result is another than [`Error::Unavailable`].
    pub(crate) async fn append_at_last(&self, store: &Redis, first: u64, words: &str) {
        let answer = at_last(|| self.append(store, first, words)).await;
        let last = first + words.split_whitespace().count() as u64 - 1;
        assert_eq!(answer.expect("stored").through, Some(last));
    }

    /// The session with another node as its owner, which has not claimed it yet.
    pub(crate) fn heir(&self) -> Self {
        let token = self.owner.token.next(random());
        let owner = Owner { token, node: Incarnation(random()) };
        let former = vec![self.owner.token];
        Self { id: self.id.clone(), owner, record: Record { owner, former, ..self.record.clone() } }
    }

    pub(crate) async fn claimed_by(&self, heir: &Self, store: &Redis) -> Result<Claimed, Error> {
        store.claim(&self.id, Expected::Token(self.owner.token), heir.owner, None, LONG).await
    }

    pub(crate) async fn log(&self, store: &Redis) -> String {
        let log = store.read_log(&self.id).await.expect("the store answers");
        let words = log.iter().map(|(_, entry)| std::str::from_utf8(entry).expect("a word"));
        words.collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn lease() -> Lease {
    Lease {
        incarnation: Incarnation(random()),
        renewal: 1,
        acknowledged: 0,
        name: "node-a".into(),
        address: "10.0.0.4:7070".into(),
        draining: false,
        load: 3,
        linked: Vec::new(),
    }
}

/// Reads the primaries and acknowledges them, as a node does each second.
pub(crate) async fn look(store: &Redis) -> Vec<Primary> {
    let primaries = at_last(|| store.primaries()).await.expect("read");
    store.acknowledge(&primaries.iter().map(|primary| primary.id).collect::<Vec<_>>());
    primaries
}

/// Repeats an operation until its result is another than [`Error::Unavailable`], for at most 30 s.
pub(crate) async fn at_last<T, F>(mut ask: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let until = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        match ask().await {
            Err(Error::Unavailable(why)) => {
                assert!(std::time::Instant::now() < until, "still unavailable: {why}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

#[track_caller]
pub(crate) fn unavailable<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(Error::Unavailable(why)) => why.to_string(),
        other => panic!("expected the store to be unavailable, not {other:?}"),
    }
}

pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}
