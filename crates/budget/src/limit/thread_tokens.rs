//! The tokens of one rate that one thread holds, so that it does not ask the node for each request.

use std::time::Duration;

use super::Refused;

/// How long a thread keeps tokens that it does not use.
const KEPT: Duration = Duration::from_millis(20);

/// How long a thread remembers that there is no token.
const REFUSED: Duration = Duration::from_millis(2);

/// Tokens that a thread took from its node.
#[derive(Clone, Debug, Default)]
pub struct ThreadTokens {
    left: u32,
    /// When what is left is given back.
    until: Duration,
    /// Requests that asked since the node was asked.
    asked: u32,
    /// There is no token until this time.
    refused: Option<(Duration, Refused)>,
    used: Duration,
}

impl ThreadTokens {
    /// Takes a token for one request. `ask` asks the node: it gets the requests that asked since the last
    /// time and the tokens that are given back, and returns at least one token.
    pub fn take(
        &mut self,
        now: Duration,
        ask: impl FnOnce(u32, u32) -> Result<u32, Refused>,
    ) -> Result<(), Refused> {
        self.used = now;
        self.asked += 1;
        if self.left > 0 && now < self.until {
            self.left -= 1;
            return Ok(());
        }
        if let Some((until, refused)) = self.refused
            && now < until
        {
            return Err(refused);
        }
        let (asked, unused) = (std::mem::take(&mut self.asked), std::mem::take(&mut self.left));
        let asked = ask(asked, unused);
        match asked {
            Ok(tokens) => {
                (self.left, self.until, self.refused) =
                    (tokens.saturating_sub(1), now + KEPT, None);
            }
            // A share may come at any time.
            Err(Refused::Wait) => {}
            Err(Refused::Over(wait)) => {
                self.refused = Some((now + wait.min(REFUSED), Refused::Over(wait)));
            }
        }
        asked.map(|_| ())
    }

    /// Gives a token back that was taken for a request which another limit refused.
    pub fn give_back(&mut self) {
        self.left += 1;
    }

    /// When a request last asked for a token.
    pub fn used(&self) -> Duration {
        self.used
    }
}
