//! Drives one session with an upstream server: a task for the link, and one for each exchange.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use budget::{Held, in_granules};
use fairness::{TickPermit, compute, is_long};
use protocol::UpstreamTokens;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use upstream::{
    Client, Effect, Exchange, ExchangeEvent, ExchangeId, Machine, Sent, SentEvent, Verb, WhenSent,
};

use crate::{EventSender, Gone, LatestTokens, LinkEvent, SavedLink, ServerEnd};

/// Most events of exchanges that wait. Beyond them the exchanges wait, and read no more. Their bytes are charged to
/// the tenant.
const EVENTS_MAX: usize = 16;

/// From so many messages without an answer on that are on their way to the server, no message of the session is
/// taken: the link fills, as that to a process that does not read. Otherwise each request on an endless stream of
/// the server would start one more. Over the older HTTP+SSE these are calls as well.
const NOTES_MAX: usize = 64;

/// How long an exchange may take to end after the response that it was for. A connection whose response
/// was read to its end can be used again.
const GRACE: Duration = Duration::from_secs(2);

/// How long a message that is no request of a client waits for the first token of the client.
const TOKENS_WITHIN: Duration = Duration::from_secs(10);

/// Drives a session until the link or the session ends: a new one, or one that was saved.
pub(super) async fn run(
    client: Client,
    saved: Option<SavedLink>,
    mut end: ServerEnd,
    tokens: Option<LatestTokens>,
) {
    let sender = end.sender();
    let machine = match saved {
        None => Some(Machine::new(random())),
        Some(saved) => Machine::carry_on(random(), &saved.state, &saved.positions),
    };
    let machine = machine.map(|machine| machine.asking_for(client.revision()));
    let Some(machine) = machine else {
        if client.is_stateful() {
            let _is_sent = sender.send(LinkEvent::StateLost).await;
        }
        sender.down("the session with the upstream server cannot be carried on");
        return;
    };
    let (events_sender, mut events) = mpsc::channel(EVENTS_MAX);
    let mut drive = Drive {
        client,
        session: sender.clone(),
        tokens,
        machine,
        held: None,
        tasks: JoinSet::new(),
        running: HashMap::new(),
        notes: 0,
        released: VecDeque::new(),
        outgoing: VecDeque::from([LinkEvent::Up]),
        outgoing_held: None,
        events: events_sender,
        effects: Vec::new(),
        is_over: false,
    };
    while !(drive.is_over && drive.outgoing.is_empty()) {
        let (is_idle, has_room) = (drive.outgoing.is_empty(), drive.notes < NOTES_MAX);
        drive.clear_ended();
        tokio::select! {
            biased;
            sent = send(&sender, drive.outgoing.front()) => match sent {
                Ok(()) => drive.note_sent(),
                Err(Gone) => break,
            },
            message = end.receive(), if has_room => match message {
                Some(message) => {
                    let bytes = message.raw().len();
                    // The link has released it, and its step may wait for others.
                    let _held = is_long(bytes).then(|| charged(&end, bytes)).flatten();
                    drive.step(bytes, |machine, effects| machine.send(message, effects)).await;
                    drive.charge(&end);
                }
                None => break,
            },
            Some(event) = events.recv(), if is_idle => {
                drive.take_event(event).await;
                drive.charge(&end);
            }
            () = sender.closed(), if !has_room => break,
            () = until(drive.released.front()) => drive.cut_released(),
            Some(ended) = drive.tasks.join_next() => drive.note_ended(ended),
        }
    }
    // The session gets nothing any more.
    drop(events);
    drive.end(end.is_ended()).await;
}

/// Sends the event; waits for ever if there is none.
async fn send(sender: &EventSender, event: Option<&LinkEvent>) -> Result<(), Gone> {
    match event {
        Some(event) => sender.send(event.clone()).await,
        None => std::future::pending().await,
    }
}

/// So many bytes, charged to the tenant of the session.
fn charged(end: &ServerEnd, bytes: usize) -> Option<Held> {
    let mut held = Held::nothing(&end.share()?);
    held.set(bytes);
    Some(held)
}

/// A number that no other machine has.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The tokens of the latest request. A session that goes on at this node after its owner was lost has none
/// until its client sends something.
async fn first(mut latest: LatestTokens) -> Option<UpstreamTokens> {
    let there = timeout(TOKENS_WITHIN, latest.wait_for(Option::is_some)).await;
    there.ok()?.ok()?.clone()
}

async fn until(released: Option<&(Instant, ExchangeId)>) {
    match released {
        Some((at, _)) => sleep_until(*at).await,
        None => std::future::pending().await,
    }
}

/// An exchange that has not ended.
struct Running {
    task: AbortHandle,
    /// When its request is sent, if that matters to others.
    when_sent: Option<WhenSent>,
    /// It sends a message without an answer.
    is_note: bool,
}

struct Drive {
    client: Client,
    /// Knows the tenant's share that is charged for what is read.
    session: EventSender,
    /// For messages that are no request of a client, if the server needs a token of each user.
    tokens: Option<LatestTokens>,
    machine: Machine,
    /// What the machine keeps, as it is charged to the tenant.
    held: Option<Held>,
    /// The exchanges. The session that sends requests bounds their number, and [`NOTES_MAX`] that of the others.
    tasks: JoinSet<()>,
    running: HashMap<ExchangeId, Running>,
    /// How many of them send messages without an answer.
    notes: usize,
    /// When exchanges are cut of which nothing more is expected, in order.
    released: VecDeque<(Instant, ExchangeId)>,
    /// What the session gets next: the messages of one event of an exchange, so they are bounded.
    outgoing: VecDeque<LinkEvent>,
    /// What the tenant is charged for the messages in it.
    outgoing_held: Option<Held>,
    events: mpsc::Sender<SentEvent>,
    effects: Vec<Effect>,
    /// The session with the server is over: only `outgoing` is left.
    is_over: bool,
}

impl Drive {
    /// Performs a step of the machine with messages of so many bytes. With long ones on another thread: they are
    /// copied if they get another id, and read if they are lists or have headers that mirror them. Everything else of
    /// the session waits meanwhile.
    async fn step<F>(&mut self, bytes: usize, step: F)
    where
        F: FnOnce(&mut Machine, &mut Vec<Effect>) + Send + 'static,
    {
        if is_long(bytes) {
            let mut machine = std::mem::replace(&mut self.machine, Machine::new(0));
            (self.machine, self.effects) = compute(self.client.tenant(), move || {
                let mut effects = Vec::new();
                step(&mut machine, &mut effects);
                (machine, effects)
            })
            .await;
        } else {
            step(&mut self.machine, &mut self.effects);
        }
        self.perform();
    }

    async fn take_event(&mut self, SentEvent { exchange: id, event, held }: SentEvent) {
        if event.is_last() {
            self.remove(id);
        }
        // The settings have another credential: the next link has it.
        let is_outdated = event.refuses_credential() && self.client.is_retired();
        let bytes = event.bytes();
        self.step(bytes, move |machine, effects| machine.on_event(id, event, effects)).await;
        if is_outdated {
            self.go_down("the settings of the upstream server were changed".to_owned());
        }
        self.outgoing_held = held.filter(|_| !self.outgoing.is_empty());
    }

    /// The session has the first event, and is charged for it.
    fn note_sent(&mut self) {
        self.outgoing.pop_front();
        if self.outgoing.is_empty() {
            self.outgoing_held = None;
        }
    }

    /// Charges what the machine keeps to the session's tenant.
    fn charge(&mut self, end: &ServerEnd) {
        let bytes = in_granules(self.machine.bytes());
        if bytes != self.held.as_ref().map_or(0, Held::amount) {
            if self.held.is_none() {
                self.held = end.share().map(|share| Held::nothing(&share));
            }
            self.held.iter_mut().for_each(|held| held.set(bytes));
        }
    }

    fn perform(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Start(id, exchange) => self.start(id, exchange),
                Effect::Release(id) => {
                    if self.running.contains_key(&id) {
                        self.released.push_back((Instant::now() + GRACE, id));
                    }
                }
                Effect::Deliver { message, about, position } => {
                    self.outgoing.push_back(match position {
                        None => LinkEvent::Message { message, about },
                        Some(position) => {
                            LinkEvent::Positioned { message: Some(message), about, position }
                        }
                    });
                }
                Effect::Advance { about, position } => {
                    let (message, position) = (None, position);
                    self.outgoing.push_back(LinkEvent::Positioned { message, about, position });
                }
                Effect::Return(request) => {
                    self.outgoing.push_back(LinkEvent::Returned { request });
                }
                Effect::LeftOut(tools) => self.client.note_left_out(&tools),
                Effect::Save(state) => self.outgoing.push_back(LinkEvent::Saved { state }),
                Effect::Down(reason) => self.go_down(reason),
            }
        }
    }

    fn start(&mut self, id: ExchangeId, mut exchange: Exchange) {
        let (client, events) = (self.client.clone(), self.events.clone());
        let share = self.session.share();
        let latest = self.tokens.clone().filter(|_| exchange.tokens.is_none());
        let is_request = matches!(exchange.verb, Verb::Request(_));
        let (sent, when_sent) = is_request.then(Sent::new).unzip();
        let behind = exchange.behind.and_then(|id| self.running.get(&id)?.when_sent.clone());
        let is_note = matches!(exchange.verb, Verb::Note(_));
        let task = self.tasks.spawn(async move {
            if let Some(behind) = behind
                && !behind.is_sent().await
            {
                // The server has not got the request, so it gets no word of its end.
                let event = ExchangeEvent::Accepted;
                let _ = events.send(SentEvent { exchange: id, event, held: None }).await;
                return;
            }
            if let Some(latest) = latest {
                // The token of the time when it is sent.
                sleep(std::mem::take(&mut exchange.after)).await;
                exchange.tokens = first(latest).await;
            }
            if is_note {
                // Such as the answer to a request of the server, which may send them without an end.
                TickPermit::of(client.tenant()).await;
            }
            client.perform(id, exchange, sent, &events, share.as_ref()).await;
        });
        self.notes += usize::from(is_note);
        self.running.insert(id, Running { task, when_sent, is_note });
    }

    /// The exchange has ended, or is about to be cut.
    fn remove(&mut self, id: ExchangeId) -> Option<Running> {
        let running = self.running.remove(&id)?;
        self.notes -= usize::from(running.is_note);
        Some(running)
    }

    fn cut_released(&mut self) {
        let Some((_, id)) = self.released.pop_front() else { return };
        if let Some(running) = self.remove(id) {
            running.task.abort();
            self.machine.forget(id);
        }
    }

    /// Drops the tasks that have ended: there may always be something else to do first.
    fn clear_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            self.note_ended(ended);
        }
    }

    fn note_ended(&mut self, ended: Result<(), JoinError>) {
        // Its events would be missing for ever.
        if ended.is_err_and(|error| error.is_panic()) {
            tracing::error!(
                backend = self.client.name(),
                "an exchange with an upstream server panicked; the link of its session is down"
            );
            self.go_down("the connection to the upstream server failed".to_owned());
        }
    }

    fn go_down(&mut self, reason: String) {
        if !std::mem::replace(&mut self.is_over, true) {
            if self.client.is_stateful() {
                self.outgoing.push_back(LinkEvent::StateLost);
            }
            self.outgoing.push_back(LinkEvent::Down { reason });
        }
    }

    /// Cuts all exchanges, and ends the session at the server if it is not to be carried on.
    async fn end(mut self, for_good: bool) {
        self.outgoing.clear();
        self.outgoing_held = None;
        self.tasks.shutdown().await;
        if for_good && let Some((id, mut exchange)) = self.machine.delete() {
            exchange.tokens = self.tokens.and_then(|tokens| tokens.borrow().clone());
            let (sender, _events) = mpsc::channel(1);
            self.client.perform(id, exchange, None, &sender, None).await;
        }
    }
}
