//! The forms of a URI that servers may take it for.

use percent_encoding::percent_decode_str;
use url::Url;

use crate::Ambiguous;

/// Most forms of one URI; one that has more is refused.
const FORMS_MAX: usize = 8;

/// The URI as it is, and what the URL standard's normalising and decoding make of it, in any order and as
/// often as that changes something: servers look resources up by any of these. A decision about a resource
/// must hold for each.
pub fn uri_forms(uri: &str) -> Result<Vec<String>, Ambiguous> {
    let mut forms = vec![uri.to_owned()];
    let mut at = 0;
    while let Some(form) = forms.get(at) {
        let normal = Url::parse(form).ok().map(String::from);
        let decoded = percent_decode_str(form).decode_utf8().map_err(|_| Ambiguous)?.into_owned();
        for other in normal.into_iter().chain([decoded]) {
            if !forms.contains(&other) {
                forms.push(other);
            }
        }
        if forms.len() > FORMS_MAX {
            return Err(Ambiguous);
        }
        at += 1;
    }
    Ok(forms)
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
            // Decoded first, and then normalised.
            "file:%2f//secret/a",
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
        let again = format!("x:/%{}61", "25".repeat(FORMS_MAX));
        assert_eq!(uri_forms(&again), Err(Ambiguous));
        assert_eq!(uri_forms("x:/%ff"), Err(Ambiguous));
    }
}
