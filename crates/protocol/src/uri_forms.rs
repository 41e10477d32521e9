//! The forms of a URI that servers may take it for.

use percent_encoding::percent_decode_str;
use url::Url;

use crate::Ambiguous;

/// How often a URI is decoded; one that is encoded more often is refused.
const DECODED_MAX: usize = 4;

/// The URI as it is, as the URL standard normalises it, and decoded, until that changes nothing: servers
/// look resources up by any of these. A decision about a resource must hold for each.
pub fn uri_forms(uri: &str) -> Result<Vec<String>, Ambiguous> {
    let mut forms = vec![uri.to_owned()];
    let mut form = uri.to_owned();
    for _ in 0..=DECODED_MAX {
        let normal = Url::parse(&form).map_or_else(|_| form.clone(), String::from);
        let decoded = percent_decode_str(&normal).decode_utf8().map_err(|_| Ambiguous)?;
        let decoded = decoded.into_owned();
        let is_last = decoded == form;
        for other in [normal, decoded.clone()] {
            if !forms.contains(&other) {
                forms.push(other);
            }
        }
        if is_last {
            return Ok(forms);
        }
        form = decoded;
    }
    Err(Ambiguous)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_has_the_form_that_a_server_makes_of_it() {
        for uri in [
            "file:///public/../secret/a",
            "file:///public/%2e%2E/secret/a",
            "file:///public/..%2fsecret/a",
            "file:///public/%252e%252e/secret/a",
            "FILE:///secret/a",
            "file:///sec\tret/a",
            " file:///secret/a",
            "file://localhost/secret/a",
            "file:///%73ecret/a",
            "file:\\\\\\secret\\a",
        ] {
            let forms = uri_forms(uri).unwrap();
            assert!(forms.contains(&"file:///secret/a".to_owned()), "{uri}: {forms:?}");
            assert_eq!(forms[0], uri);
        }
        assert!(uri_forms("x:/public/../private").unwrap().contains(&"x:/private".to_owned()));
    }

    #[test]
    fn a_usual_uri_has_one_form() {
        for uri in ["test://static-text", "x:/a", "note", "file:///a/b.txt"] {
            assert_eq!(uri_forms(uri).unwrap(), [uri], "{uri}");
        }
        let forms = uri_forms("https://a.example").unwrap();
        assert_eq!(forms, ["https://a.example", "https://a.example/"]);
    }

    #[test]
    fn what_is_encoded_again_and_again_is_refused() {
        assert_eq!(uri_forms("x:/%25252525252561"), Err(Ambiguous));
        assert_eq!(uri_forms("x:/%ff"), Err(Ambiguous));
    }
}
