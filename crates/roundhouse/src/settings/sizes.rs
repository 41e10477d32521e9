//! Sizes with a unit, as in `"512M"`, for keys that count bytes.

use serde_json::Value as Json;

/// The units, by their first letter. All are powers of 1024.
const UNITS: &str = "KMGT";

/// Does this key count bytes?
pub(crate) fn is_size(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    name.split('_').any(|part| part == "bytes")
}

/// The number of bytes of a text such as `512M`, `64 KiB` or `1000`; `None` if it is none, or too
/// large.
pub(crate) fn parse(text: &str) -> Option<Json> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = unit.trim_start();
    let power = match unit.chars().next() {
        None => 0,
        Some(first) => {
            let power = UNITS.find(first.to_ascii_uppercase())? + 1;
            // `MB` means 1,000,000 to many, and 1,048,576 to others.
            matches!(&unit[first.len_utf8()..], "" | "iB").then_some(power)?
        }
    };
    let bytes = number.checked_mul(1024_u64.checked_pow(u32::try_from(power).ok()?)?)?;
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_of_a_power_of_1024_or_none() {
        let bytes = |text| parse(text).and_then(|bytes| bytes.as_u64());
        for (text, expected) in [
            ("512M", Some(512 << 20)),
            ("64 KiB", Some(64 << 10)),
            ("1g", Some(1 << 30)),
            ("4096", Some(4096)),
            ("1MB", None),
            ("512B", None),
            ("M", None),
            ("-1M", None),
            ("1.5G", None),
            ("99999999T", None),
            ("", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
        for key in ["a.memory_bytes_max", "front.body_bytes_per_sec_min", "a.session_bytes_min"] {
            assert!(is_size(key), "{key}");
        }
        assert!(!is_size("sessions.sessions_max"));
    }
}
