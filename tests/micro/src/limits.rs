//! What a rate adds to a request: the tokens of the thread are found and one is taken. The rate is the one of
//! a node alone; in a cluster the same bucket has another rate.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use budget::limit::{Rate, RateOfNode, Refused, ThreadTokens};

/// The time between two requests.
const BETWEEN: Duration = Duration::from_micros(100);

/// A decision for each request, with this rate: of a high one most tokens are at the thread, of a low one
/// the node is asked, and has none for most requests.
pub(crate) fn decision(per_sec: f64) -> Box<dyn FnMut()> {
    let rate = Rate { per_sec, burst: per_sec };
    let of_node = Mutex::new(RateOfNode::alone(rate, Duration::ZERO));
    let mut threads: HashMap<Arc<str>, ThreadTokens> = HashMap::new();
    threads.insert("acme".into(), ThreadTokens::default());
    let mut now = Duration::ZERO;
    Box::new(move || {
        now += BETWEEN;
        let Some(tokens) = threads.get_mut(black_box("acme")) else { return };
        let taken = tokens.take(now, |asked, unused| {
            let mut of_node = of_node.lock().unwrap_or_else(PoisonError::into_inner);
            of_node.give_back(unused, now);
            let most = (of_node.per_sec(now) * 0.005) as u32;
            of_node.take(most.max(1), asked, now)
        });
        black_box::<Result<(), Refused>>(taken).ok();
    })
}
