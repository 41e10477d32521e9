//! How the clients of a tenant authenticate: one or several kinds.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::KEY_PREFIX;

/// The kinds of credentials as the operator wrote them: `"keys"`, `"keys, oauth"` or `["keys", "oauth"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth(Vec<String>);

impl Auth {
    /// The words, in the order in which they were written.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether this word is there.
    pub fn has(&self, word: &str) -> bool {
        self.words().any(|one| one == word)
    }
}

impl From<&str> for Auth {
    fn from(text: &str) -> Self {
        Self(text.split(',').map(|word| word.trim().to_owned()).collect())
    }
}

/// A word as an error may show it: an operator may have written a key there.
pub(crate) fn shown(word: &str) -> &str {
    if word.contains(KEY_PREFIX) { "a key" } else { word }
}

impl fmt::Display for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().map(shown).collect::<Vec<_>>().join(", "))
    }
}

impl Serialize for Auth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &*self.0 {
            [one] => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Auth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a text, or a list of texts")]
        enum Written {
            One(String),
            Several(Vec<String>),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::One(text) => Self::from(&*text),
            Written::Several(all) => Self(all),
        })
    }
}
