//! The tenant's server at the owner of the session.

use super::*;

impl World {
    pub(crate) fn link_up(&mut self, at: Incarnation, id: &SessionId, instance: u64) {
        let Some(owned) = self.owned(at, id) else { return };
        if owned.instance.as_ref().is_none_or(|other| other.number != instance) {
            return;
        }
        self.happened(at, id, Event::LinkUp);
        if self.plan.chat > 0 {
            let wait = self.plan.chat;
            self.after(wait, Happening::Rings(at, Timer::Chat(id.clone(), instance)));
        }
    }

    fn owned(&self, at: Incarnation, id: &SessionId) -> Option<&Owned> {
        self.processes.get(&at)?.sessions.get(id)
    }

    pub(crate) fn instance_goes_on(
        &mut self,
        at: Incarnation,
        id: &SessionId,
        number: u64,
        request: &RequestId,
    ) {
        self.with_instance(at, id, number, |instance, did| instance.go_on(request, did));
    }

    pub(crate) fn instance_chats(&mut self, at: Incarnation, id: &SessionId, number: u64) {
        if self.now >= self.plan.calm_at {
            return;
        }
        let spoke = self.with_instance(at, id, number, Instance::chat);
        if spoke {
            let wait = self.plan.chat;
            self.after(wait, Happening::Rings(at, Timer::Chat(id.clone(), number)));
        }
    }

    fn with_instance(
        &mut self,
        at: Incarnation,
        id: &SessionId,
        number: u64,
        act: impl FnOnce(&mut Instance, &mut Vec<Did>),
    ) -> bool {
        let Some(mut owned) = self.take(at, id) else { return false };
        let mut did = Vec::new();
        let instance = owned.instance.as_mut().filter(|instance| instance.number == number);
        let there = instance.is_some();
        if let Some(instance) = instance {
            act(instance, &mut did);
        }
        self.instance_did(at, id, &mut owned, did);
        self.live(at, id, owned);
        there
    }

    pub(super) fn instance_did(
        &mut self,
        at: Incarnation,
        id: &SessionId,
        owned: &mut Owned,
        did: Vec<Did>,
    ) {
        let Some(instance) = &owned.instance else { return };
        let (number, level) = (instance.number, instance.level.clone());
        for did in did {
            match did {
                Did::Say(message, about) => {
                    owned.following.push_back(Event::ServerMessage {
                        message,
                        about,
                        position: None,
                    });
                }
                Did::Later(request, millis) => {
                    let timer = Timer::Step(id.clone(), number, request);
                    self.after(millis, Happening::Rings(at, timer));
                }
                Did::Ran(job) => {
                    let name = self.name(at);
                    let call = job.call;
                    self.note(|| format!("{name} {} runs call {call}", id.as_str()));
                    let owns = self.acted(id, owned, "a tool was run");
                    let client = self.clients.iter().find(|c| c.session.as_ref() == Some(id));
                    self.checker.ran(self.now, at, id, &job, client);
                    if let Some(client) = client
                        && owns
                        && !client.may_have(level.as_deref())
                    {
                        let text = format!("a tool was run at log level {level:?}");
                        self.checker.forgotten(self.now, id, &text);
                    }
                }
                Did::Misled(text) => self.checker.breaks(text),
            }
        }
    }
}
