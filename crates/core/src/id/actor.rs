//! The actor of a write.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::name::{NameError, NameRule, is_reference};

const KINDS: [&str; 3] = ["user:", "client:", "system:"];
const ALPHABET: &str = "user:, client: or system:, then letters, digits and :._@+-";

/// The authenticated author of a write: `user:<id>`, `client:<id>` or `system:<component>`. It is never taken from a
/// request body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor(Arc<str>);

impl Actor {
    /// The longest actor, in bytes.
    pub const BYTES_MAX: usize = 256;
    /// The actor of callers of a server without keys.
    pub const LOCAL: &str = "system:local";
    /// The actor of Earmark's own work, such as expiry.
    pub const ITSELF: &str = "system:earmark";

    /// Parses `text`.
    ///
    /// # Errors
    /// The kind prefix or the id is missing, it is too long, or it has a character outside its alphabet.
    pub fn new(text: &str) -> Result<Actor, NameError> {
        let rule = NameRule { kind: "actor", bytes_max: Actor::BYTES_MAX, alphabet: ALPHABET, allows: is_reference };
        rule.check(text)?;
        match KINDS.iter().find_map(|kind| text.strip_prefix(kind)) {
            None => Err(rule.mistake("no kind of actor at its start")),
            Some("") => Err(rule.mistake("no id after the kind of actor")),
            Some(_) => Ok(Actor(Arc::from(text))),
        }
    }

    /// The actor as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Actor {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Actor, NameError> {
        Actor::new(text)
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_says_what_kind_it_is_and_who() {
        for text in ["user:789", "client:api_key_abc", "system:gc"] {
            assert_eq!(Actor::new(text).unwrap().as_str(), text);
        }
        for text in ["", "user", "user:", "admin:1", "User:1", "user:a b", "client:é", &"user:x".repeat(60)] {
            assert!(Actor::new(text).is_err(), "{text}");
        }
    }
}
