//! Compares JSON numbers by their decimal values, without rounding: 42 equals 42.0, and
//! 9007199254740993 does not equal 9007199254740992.

/// Whether two JSON numbers have the same value. `false` if one is not a JSON number.
pub(crate) fn same_number(one: &str, other: &str) -> bool {
    match (Decimal::read(one), Decimal::read(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// `0.digits * 10^exponent`, with neither leading nor trailing zeros in `digits`.
#[derive(PartialEq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent_of(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, non_empty_digits(fraction)?),
            None => (mantissa, ""),
        };
        let whole =
            non_empty_digits(whole).filter(|whole| *whole == "0" || !whole.starts_with('0'))?;
        let all = format!("{whole}{fraction}");
        let significant = all.trim_start_matches('0');
        if significant.is_empty() {
            return Some(Self { negative: false, digits: String::new(), exponent: 0 });
        }
        let leading_zeros = i64::try_from(all.len() - significant.len()).ok()?;
        let point = i64::try_from(whole.len()).ok()?;
        Some(Self {
            negative,
            digits: significant.trim_end_matches('0').to_owned(),
            exponent: exponent.checked_add(point)?.checked_sub(leading_zeros)?,
        })
    }
}

fn non_empty_digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

fn exponent_of(text: &str) -> Option<i64> {
    non_empty_digits(text.strip_prefix(['+', '-']).unwrap_or(text))?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::same_number;

    #[test]
    fn numbers_are_compared_by_value() {
        for (one, other) in [
            ("42", "42.0"),
            ("42", "4.2e1"),
            ("42", "420E-1"),
            ("1e21", "1000000000000000000000"),
            ("1e+21", "1E21"),
            ("0", "-0.0"),
            ("0.05", "5e-2"),
            ("-3.140", "-3.14"),
        ] {
            assert!(same_number(one, other) && same_number(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("42", "43"),
            ("42", "-42"),
            ("9007199254740993", "9007199254740992.0"),
            ("1", "10"),
            ("0.1", "0.01"),
        ] {
            assert!(!same_number(one, other), "{one} {other}");
        }
    }

    #[test]
    fn what_json_does_not_call_a_number_equals_nothing() {
        for text in [
            "",
            "042",
            "+42",
            "42.",
            ".5",
            "0x2a",
            "42 ",
            "4_2",
            "NaN",
            "1e",
            "1e999999999999999999999",
        ] {
            assert!(!same_number(text, "42") && !same_number(text, text), "{text}");
        }
    }
}
