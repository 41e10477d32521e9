//! Whether a URI may have been made from a template of RFC 6570.
//!
//! Only the literal parts are compared: a variable stands for any text. So a URI may fit a template
//! that could not have made it; its server refuses it then.

/// How many bytes of the URI are literal in the template; `None` if the URI does not fit. The template
/// with the most is the most specific one.
pub(crate) fn fit(template: &str, uri: &str) -> Option<usize> {
    let mut parts = template.split('{');
    let first = parts.next().unwrap_or_default();
    let mut rest = uri.strip_prefix(first)?;
    let mut literal = first.len();
    let mut parts = parts.map(|part| part.split_once('}').map_or("", |(_, text)| text)).peekable();
    if parts.peek().is_none() {
        return rest.is_empty().then_some(literal);
    }
    while let Some(text) = parts.next() {
        literal += text.len();
        if parts.peek().is_none() {
            return rest.ends_with(text).then_some(literal);
        }
        rest = &rest[rest.find(text)? + text.len()..];
    }
    Some(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_fits_the_templates_that_may_have_made_it() {
        for (template, uri, expected) in [
            ("x:/a", "x:/a", Some(4)),
            ("x:/a", "x:/ab", None),
            ("x:/{a}", "x:/", Some(3)),
            ("x:/{a}", "x:/b/c", Some(3)),
            ("x:/{a}/c", "x:/b/c", Some(5)),
            ("x:/{a}/c", "x:/b/d", None),
            ("x:/{a}/{b}.md", "x:/1/2.md", Some(7)),
            ("x:/{a}/{b}.md", "x:/1.md", None),
            ("{+a}", "anything", Some(0)),
            ("x:/{a", "x:/b", Some(3)),
            ("", "x", None),
        ] {
            assert_eq!(fit(template, uri), expected, "{template} {uri}");
        }
    }
}
