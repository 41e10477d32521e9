//! Which content types a client accepts (`Accept`), and which one it sent (`Content-Type`).

/// Which of the two answers of Streamable HTTP a client accepts (POST-03, GET-03). Built from one
/// `Accept` header after another; without any, both are accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accept {
    json: Taken,
    events: Taken,
    present: bool,
}

/// Whether a client accepts a type; the most specific media range counts.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    specificity: u8,
    taken: bool,
}

/// The value with which the SDKs accept both. No other header reduces it.
const SDKS: [&str; 2] =
    ["application/json, text/event-stream", "text/event-stream, application/json"];

impl Accept {
    /// Reads one header's value: media ranges with parameters, in any order; unknown ones are
    /// ignored.
    pub(crate) fn add(&mut self, value: &str) {
        self.present = true;
        if SDKS.contains(&value) {
            let exactly = Taken { specificity: 3, taken: true };
            (self.json, self.events) = (exactly, exactly);
            return;
        }
        for range in value.split(',') {
            let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
            let taken = !parameters.split(';').any(is_zero_weight);
            let name = name.trim();
            self.json.weigh(specificity(name, "application/json", "application/*"), taken);
            self.events.weigh(specificity(name, "text/event-stream", "text/*"), taken);
        }
    }

    /// Does the client take a single JSON answer?
    pub(crate) fn json(&self) -> bool {
        self.json.taken || !self.present
    }

    /// Does the client take a stream of events?
    pub(crate) fn events(&self) -> bool {
        self.events.taken || !self.present
    }
}

impl Taken {
    fn weigh(&mut self, specificity: u8, taken: bool) {
        if specificity > self.specificity {
            *self = Self { specificity, taken };
        } else if specificity == self.specificity && specificity > 0 {
            self.taken |= taken;
        }
    }
}

fn specificity(range: &str, exact: &str, family: &str) -> u8 {
    if range.eq_ignore_ascii_case(exact) {
        3
    } else if range.eq_ignore_ascii_case(family) {
        2
    } else {
        u8::from(range == "*/*")
    }
}

/// Is this parameter a weight of zero, as in `q=0.0`?
fn is_zero_weight(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, weight)| {
        name.trim().eq_ignore_ascii_case("q") && weight.trim().parse() == Ok(0.0_f32)
    })
}

/// Is a body of this type JSON in UTF-8? Another charset is not accepted (POST-04).
pub(crate) fn is_json(content_type: &str) -> bool {
    // The spelling that nearly every client uses.
    if content_type == "application/json" {
        return true;
    }
    let (name, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    name.trim().eq_ignore_ascii_case("application/json")
        && parameters.split(';').all(|parameter| match parameter.split_once('=') {
            Some((name, charset)) if name.trim().eq_ignore_ascii_case("charset") => {
                charset.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
            }
            _ => true,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[&str], json: bool, events: bool) {
        let mut accept = Accept::default();
        values.iter().for_each(|value| accept.add(value));
        assert_eq!((accept.json(), accept.events()), (json, events), "{values:?}");
    }

    #[test]
    fn both_types_are_found_in_any_order_weight_case_and_company() {
        check(&[], true, true);
        check(&["application/json, text/event-stream"], true, true);
        check(&["text/event-stream;q=0.5,application/json;q=0.9, image/png"], true, true);
        check(&["Application/JSON; charset=utf-8", "TEXT/event-stream"], true, true);
        check(&["*/*"], true, true);
        check(&["application/*, text/*;q=0.1"], true, true);
    }

    #[test]
    fn a_type_left_out_or_weighed_nothing_is_not_taken() {
        check(&["application/json"], true, false);
        check(&["text/event-stream"], false, true);
        check(&["text/html"], false, false);
        check(&[""], false, false);
        check(&["*/*, text/event-stream;q=0"], true, false);
        check(&["application/json;q=0.000, */*"], false, true);
    }

    #[test]
    fn json_is_json_with_utf_8_or_no_charset() {
        for json in [
            "application/json",
            "Application/JSON;charset=UTF-8",
            "application/json; charset=\"utf-8\"; v=1",
        ] {
            assert!(is_json(json), "{json}");
        }
        for other in [
            "",
            "text/plain",
            "application/jsonp",
            "application/json; charset=latin1",
            "multipart/form-data; boundary=application/json",
        ] {
            assert!(!is_json(other), "{other}");
        }
    }
}
