//! A line of the access log, in the two formats of the log.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{ExchangeRecord, Format, SpanRef};

/// Appends the line of a record.
pub(crate) fn write(line: &mut String, record: &ExchangeRecord, format: Format) {
    let mut fields = Fields { line, format };
    fields.begin(record.ended_at);
    fields.text("tenant", record.tenant.as_deref());
    fields.text("session", record.session.as_ref().map(|session| session.as_str()));
    fields.text("revision", record.revision);
    fields.text("client", record.client.as_ref().map(|client| client.as_str()));
    fields.text("endpoint", Some(record.endpoint));
    fields.text("verb", Some(record.verb).filter(|verb| !verb.is_empty()));
    fields.text("method", record.method.as_ref().map(|method| method.as_str()));
    fields.text("tool", record.tool.as_ref().map(|tool| tool.as_str()));
    fields.text("outcome", Some(record.outcome.as_str()));
    fields.number("status", Some(record.status).filter(|status| *status != 0));
    fields.number("code", record.code);
    let micros = record.duration.as_micros();
    fields.number("ms", Some(format_args!("{}.{:03}", micros / 1_000, micros % 1_000)));
    fields.number("bytes_in", Some(record.bytes_in));
    fields.number("bytes_out", Some(record.bytes_out));
    fields.text("node", Some(&*record.node));
    fields.text("owner", Some(record.owner.as_deref().unwrap_or(&record.node)));
    if let Some(SpanRef { trace, span }) = record.trace {
        fields.text("trace_id", Some(&trace.to_string()));
        fields.text("span_id", Some(&format!("{span:016x}")));
    }
    fields.end();
}

/// Writes fields in one format. Writing to a text cannot fail.
struct Fields<'a> {
    line: &'a mut String,
    format: Format,
}

impl Fields<'_> {
    fn begin(&mut self, time: SystemTime) {
        match self.format {
            Format::Text => {
                write_time(self.line, time);
                self.line.push_str("  INFO access: exchange");
            }
            Format::Json => {
                self.line.push_str("{\"timestamp\":\"");
                write_time(self.line, time);
                self.line.push_str(
                    "\",\"level\":\"INFO\",\"message\":\"exchange\",\"target\":\"access\"",
                );
            }
        }
    }

    fn key(&mut self, key: &str) {
        let (before, after) = match self.format {
            Format::Text => (" ", "="),
            Format::Json => (",\"", "\":"),
        };
        for part in [before, key, after] {
            self.line.push_str(part);
        }
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.key(key);
        let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@+".contains(&byte);
        if self.format == Format::Text && !value.is_empty() && value.bytes().all(bare) {
            self.line.push_str(value);
            return;
        }
        self.line.push('"');
        for char in value.chars() {
            match char {
                '"' | '\\' => self.line.extend(['\\', char]),
                // A label has none; a tenant or a node neither.
                _ if char.is_control() => self.line.push('?'),
                _ => self.line.push(char),
            }
        }
        self.line.push('"');
    }

    fn number(&mut self, key: &str, value: Option<impl std::fmt::Display>) {
        let Some(value) = value else { return };
        self.key(key);
        let _ = write!(self.line, "{value}");
    }

    fn end(&mut self) {
        self.line.push_str(match self.format {
            Format::Text => "\n",
            Format::Json => "}\n",
        });
    }
}

/// The time in UTC, as RFC 3339 has it, with microseconds.
fn write_time(line: &mut String, time: SystemTime) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (secs, micros) = (since.as_secs(), since.subsec_micros());
    let (year, month, day) = date(secs / 86_400);
    let (hour, minute, second) = (secs / 3_600 % 24, secs / 60 % 60, secs % 60);
    let _ = write!(
        line,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
    );
}

/// The date in the Gregorian calendar, so many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // The years of this computation begin in March, so that a leap day is the last of its year.
    // 400 years have 146,097 days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Label, Outcome, SessionTag, TraceId};

    fn record() -> ExchangeRecord {
        ExchangeRecord {
            ended_at: UNIX_EPOCH + Duration::from_micros(1_790_251_824_012_345),
            duration: Duration::from_micros(12_034),
            tenant: Some("acme".into()),
            session: Some(SessionTag::of("0123456789abcdef")),
            revision: Some("2025-11-25"),
            client: Some(Label::of("an \"odd\" client/1.0")),
            endpoint: "mcp",
            verb: "POST",
            method: Some(Label::Known("tools/call")),
            tool: Some(Label::of("echo")),
            outcome: Outcome::Error,
            status: 200,
            code: Some(-32602),
            bytes_in: 123,
            bytes_out: 456,
            node: "n1".into(),
            owner: None,
            trace: None,
        }
    }

    fn line(record: &ExchangeRecord, format: Format) -> String {
        let mut line = String::new();
        write(&mut line, record, format);
        line
    }

    #[test]
    fn a_line_of_text_has_all_that_is_known() {
        assert_eq!(
            line(&record(), Format::Text),
            "2026-09-24T12:10:24.012345Z  INFO access: exchange tenant=acme session=01234567 \
             revision=2025-11-25 client=\"an \\\"odd\\\" client/1.0\" endpoint=mcp verb=POST \
             method=tools/call tool=echo outcome=error status=200 code=-32602 ms=12.034 \
             bytes_in=123 bytes_out=456 node=n1 owner=n1\n"
        );
    }

    #[test]
    fn a_line_of_json_is_an_object_with_the_same_fields() {
        let trace = Some(SpanRef { trace: TraceId(0x1f), span: 0x2e });
        let record = ExchangeRecord { owner: Some("n2".into()), trace, ..record() };
        assert_eq!(
            line(&record, Format::Json),
            "{\"timestamp\":\"2026-09-24T12:10:24.012345Z\",\"level\":\"INFO\",\
             \"message\":\"exchange\",\"target\":\"access\",\"tenant\":\"acme\",\
             \"session\":\"01234567\",\"revision\":\"2025-11-25\",\
             \"client\":\"an \\\"odd\\\" client/1.0\",\"endpoint\":\"mcp\",\"verb\":\"POST\",\
             \"method\":\"tools/call\",\"tool\":\"echo\",\"outcome\":\"error\",\"status\":200,\
             \"code\":-32602,\"ms\":12.034,\"bytes_in\":123,\"bytes_out\":456,\"node\":\"n1\",\
             \"owner\":\"n2\",\
             \"trace_id\":\"0000000000000000000000000000001f\",\
             \"span_id\":\"000000000000002e\"}\n"
        );
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let record = ExchangeRecord {
            tenant: None,
            session: None,
            revision: None,
            client: None,
            method: None,
            tool: None,
            code: None,
            status: 0,
            verb: "",
            ..record()
        };
        let line = line(&record, Format::Text);
        assert!(line.contains("exchange endpoint=mcp outcome=error ms=12.034"), "{line}");
    }

    #[test]
    fn days_are_dates_of_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_454, (2026, 1, 1)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }
}
