//! The names of tenants.

use crate::Error;

/// Maximum length of a name, in characters. Paths, logs and metric labels contain it.
const LENGTH_MAX: usize = 64;

/// Checks that paths, keys and labels can contain the name without escapes.
pub(crate) fn check(name: &str) -> Result<(), Error> {
    let Some(first) = name.chars().next() else {
        return Err(Error::NameEmpty);
    };
    let length = name.chars().count();
    if length > LENGTH_MAX {
        let name = name.chars().take(LENGTH_MAX).collect();
        return Err(Error::NameTooLong { name, length, max: LENGTH_MAX });
    }
    if let Some(found) = name.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_')) {
        return Err(Error::NameCharacter { name: name.into(), found });
    }
    if matches!(first, '-' | '_') {
        return Err(Error::NameStart(name.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_fit_into_a_path_are_taken() {
        for name in ["a", "7", "acme", "acme-2_x", &"a".repeat(64)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn other_names_are_refused_with_what_is_wrong_about_them() {
        let message = |name: &str| check(name).unwrap_err().to_string();
        assert!(message("").contains("needs a name"));
        assert!(message(&"a".repeat(65)).contains("65 characters"));
        assert!(message("Acme").contains("'A'"));
        assert!(message("a/b").contains("'/'"));
        assert!(message("..").contains("'.'"));
        assert!(message("ä").contains("'ä'"));
        assert!(message("-a").contains("begin it with a letter"));
    }
}
