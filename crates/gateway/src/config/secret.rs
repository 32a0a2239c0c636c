//! The keys of upstreams.

use std::fmt;
use std::path::PathBuf;

use hyper::header::HeaderValue;

/// The largest file with a key, in bytes.
const KEY_BYTES_MAX: usize = 16 << 10;

/// Where the key of an upstream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file.
    File(PathBuf),
}

/// The key of an upstream. It is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a key cannot be used. No message contains it.
#[derive(Debug, thiserror::Error)]
#[error("upstream {upstream}: {what}")]
pub struct SecretError {
    upstream: String,
    what: String,
}

impl Secret {
    /// The key with `prefix` before it, as a header that is never printed.
    pub(crate) fn header(&self, prefix: &str) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("{prefix}{}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Whether a text from the upstream has the key.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        memchr::memmem::find(bytes, self.0.as_bytes()).is_some()
    }
}

impl SecretSource {
    /// Reads the key of `upstream`.
    pub(super) fn open(&self, upstream: &str) -> Result<Secret, SecretError> {
        let fail = |what: String| SecretError { upstream: upstream.to_owned(), what };
        let (text, place) = match self {
            SecretSource::Env(name) => {
                let what = |_| fail(format!("key_env: the environment variable {name} is not set"));
                (std::env::var(name).map_err(what)?, format!("key_env: the environment variable {name}"))
            }
            SecretSource::File(path) => {
                let text = std::fs::read_to_string(path);
                let what = |error| fail(format!("key_file: cannot read {}: {error}", path.display()));
                (text.map_err(what)?, format!("key_file: the file {}", path.display()))
            }
        };
        let key = text.trim();
        if key.is_empty() {
            return Err(fail(format!("{place} is empty")));
        }
        if key.len() > KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(fail(format!("{place} holds no key: only visible ASCII characters are allowed")));
        }
        Ok(Secret(key.to_owned()))
    }
}
