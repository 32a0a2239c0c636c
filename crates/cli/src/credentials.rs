//! The key that a command sends. It comes from the environment or a file, never from the command line, which other users
//! of the machine can read.

use std::fmt;
use std::path::Path;

use earmark_admission::exposure;
use earmark_client::ApiKey;

use crate::failure::Failure;
use crate::output;

const KEY: &str = "EARMARK_KEY";
const KEY_FILE: &str = "EARMARK_KEY_FILE";

/// A key or session token. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials(String);

impl Credentials {
    /// Checks the characters of a key or session token.
    pub(crate) fn new(text: &str) -> Result<Credentials, Failure> {
        Credentials::read(text).ok_or_else(|| wrong(KEY))
    }

    fn read(text: &str) -> Option<Credentials> {
        let text = text.trim();
        let is_fit = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_fit.then(|| Credentials(text.to_owned()))
    }

    /// The credentials in EARMARK_KEY, or in the file named by EARMARK_KEY_FILE.
    pub(crate) fn of_environment() -> Result<Option<Credentials>, Failure> {
        if let Some(text) = std::env::var_os(KEY) {
            return Credentials::new(text.to_str().unwrap_or_default()).map(Some);
        }
        let Some(path) = std::env::var_os(KEY_FILE) else { return Ok(None) };
        let path = Path::new(&path);
        let unreadable = |error| Failure::Usage(format!("{KEY_FILE}: cannot read {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        if let Some(warning) = exposure(path) {
            output::complain(&format!("earmark: {KEY_FILE}: {warning}"));
        }
        Credentials::read(&text).ok_or_else(|| wrong(KEY_FILE)).map(Some)
    }

    /// The credentials for the Rust client.
    pub(crate) fn api_key(&self) -> Result<ApiKey, Failure> {
        ApiKey::new(&self.0).map_err(|error| Failure::Usage(error.to_string()))
    }

    /// The value of the header `authorization`.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

fn wrong(variable: &str) -> Failure {
    Failure::Usage(format!("{variable}: found neither a key nor a session token"))
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_one_word_and_do_not_show() {
        let credentials = Credentials::new(" emk_a_b\n").unwrap();
        assert_eq!(credentials.header(), "Bearer emk_a_b");
        assert_eq!(format!("{credentials:?}"), "Credentials(..)");
        for wrong in ["", " ", "a b", "a\nb", "é"] {
            assert!(Credentials::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
