//! Checks the names of headers that pages may send.

use crate::Error;

/// Whether this is the name of a header. A wildcard is refused: browsers would read it as one.
pub(crate) fn check(tenant: &str, written: &str) -> Result<(), Error> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
    if !written.is_empty() && written.bytes().all(is_token) {
        return Ok(());
    }
    Err(Error::HeaderName { name: tenant.into(), written: written.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_headers_are_taken() {
        for name in ["x-request-id", "X-API-Version", "a"] {
            assert_eq!(check("t", name), Ok(()), "{name}");
        }
        for wrong in ["*", "", "x:y", "a b", "gr\u{f6}\u{df}e", "x-*"] {
            let error = check("t", wrong).unwrap_err().to_string();
            assert!(error.contains("as in \"x-request-id\""), "{error}");
        }
    }
}
