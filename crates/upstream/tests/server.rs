//! A server that answers each connection with fixed bytes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use upstream::{Client, Effect, Exchange, ExchangeEvent, HttpSettings, Machine, SentEvent, Verb};

/// What a server does on a connection after it has read a request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// Writes these bytes, and closes the connection.
    Once(String),
    /// Writes the first bytes, and the others again and again; without others it keeps the connection.
    Endless(String, String),
    /// Writes nothing.
    Nothing,
}

/// A server, and the heads and bodies that it has received.
pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Connections get these answers in turn; the last one is repeated.
    pub(crate) async fn start(answers: Vec<Answer>) -> Self {
        let mut answers = answers.into_iter().peekable();
        Self::serve(move |_| {
            move |_: &str| {
                let answer = answers.peek().cloned();
                if answers.len() > 1 {
                    answers.next();
                }
                answer.unwrap_or(Answer::Nothing)
            }
        })
        .await
    }

    /// Each connection gets the answer for the path of its request. `of` gets the origin.
    pub(crate) async fn by_path<A>(of: impl FnOnce(&str) -> A) -> Self
    where
        A: FnMut(&str) -> Answer + Send + 'static,
    {
        Self::serve(of).await
    }

    async fn serve<A>(of: impl FnOnce(&str) -> A) -> Self
    where
        A: FnMut(&str) -> Answer + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let answers = Arc::new(Mutex::new(of(&origin)));
        let url = format!("{origin}/mcp");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (seen, answers) = (Arc::clone(&seen), Arc::clone(&answers));
                tokio::spawn(async move {
                    let mut request = vec![0; 4_096];
                    let read = stream.read(&mut request).await.unwrap_or(0);
                    let request = String::from_utf8_lossy(&request[..read]).into_owned();
                    let path = request.split(' ').nth(1).unwrap_or_default();
                    let answer = (answers.lock().unwrap())(path);
                    seen.lock().unwrap().push(request);
                    match answer {
                        Answer::Once(bytes) => drop(stream.write_all(bytes.as_bytes()).await),
                        Answer::Endless(first, rest) => {
                            let mut written = stream.write_all(first.as_bytes()).await;
                            if rest.is_empty() {
                                return std::future::pending().await;
                            }
                            while written.is_ok() {
                                written = stream.write_all(rest.as_bytes()).await;
                            }
                        }
                        Answer::Nothing => std::future::pending().await,
                    }
                });
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Scheme, address and port.
    pub(crate) fn origin(&self) -> &str {
        self.url.trim_end_matches("/mcp")
    }

    /// Settings that permit loopback, with low bounds.
    pub(crate) fn settings(&self) -> HttpSettings {
        let mut settings = HttpSettings::new(&self.url);
        settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
        settings.message_bytes_max = 1_000;
        settings.silence_secs = 1;
        settings
    }

    /// The events of one request.
    pub(crate) async fn events(&self) -> Vec<ExchangeEvent> {
        perform(&self.settings(), exchange()).await
    }
}

/// A client with these settings.
pub(crate) fn client_of(settings: &HttpSettings) -> Result<Client, Vec<String>> {
    Client::new(&budget::Budget::unlimited().unnamed_share("test"), "test", settings)
}

/// A request of a session without an id.
pub(crate) fn exchange() -> Exchange {
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    Exchange {
        verb: Verb::Request(body),
        session: None,
        revision: None,
        mirrored: None,
        after: Duration::ZERO,
        to: None,
        tokens: None,
        behind: None,
    }
}

/// The events of an exchange.
pub(crate) async fn perform(settings: &HttpSettings, exchange: Exchange) -> Vec<ExchangeEvent> {
    perform_with(&client_of(settings).unwrap(), exchange).await
}

/// The events of an exchange of this client.
pub(crate) async fn perform_with(client: &Client, exchange: Exchange) -> Vec<ExchangeEvent> {
    perform_charged(client, exchange, None).await
}

/// The same, charged to this share.
pub(crate) async fn perform_charged(
    client: &Client,
    exchange: Exchange,
    share: Option<budget::Share>,
) -> Vec<ExchangeEvent> {
    let (sender, mut events) = mpsc::channel(1);
    let client = client.clone();
    // Only machines make ids of exchanges.
    let (mut machine, mut effects) = (Machine::new(0), Vec::new());
    machine.send(protocol::Notification::new(protocol::Method::Ping, None).into(), &mut effects);
    let Some(Effect::Start(id, _)) = effects.pop() else { panic!("no exchange") };
    tokio::spawn(async move {
        client.perform(id, exchange, None, &sender, share.as_ref()).await;
    });
    let mut received = Vec::new();
    while let Some(SentEvent { event, .. }) = events.recv().await {
        received.push(event);
    }
    received
}

/// The first events of so many exchanges at the same time, one for each exchange that has any soon.
pub(crate) async fn at_once(client: &Client, verb: Verb, count: usize) -> Vec<ExchangeEvent> {
    let (sender, mut events) = mpsc::channel(count);
    let (mut machine, mut effects) = (Machine::new(0), Vec::new());
    let ping = || protocol::Notification::new(protocol::Method::Ping, None);
    (0..count).for_each(|_| machine.send(ping().into(), &mut effects));
    let mut tasks = tokio::task::JoinSet::new();
    for effect in effects {
        let Effect::Start(id, _) = effect else { continue };
        let (client, sender, verb) = (client.clone(), sender.clone(), verb.clone());
        let exchange = Exchange { verb, ..exchange() };
        tasks.spawn(async move { client.perform(id, exchange, None, &sender, None).await });
    }
    // The exchanges with a connection have no event: the server sends nothing.
    let first = events.recv().await.map(|sent| sent.event);
    tasks.shutdown().await;
    first.into_iter().chain(std::iter::from_fn(|| Some(events.try_recv().ok()?.event))).collect()
}
