//! The credentials of a caller.

use std::fmt;

use hyper::header::HeaderValue;

/// An API key or a session token. It is never printed.
#[derive(Clone)]
pub struct ApiKey(HeaderValue);

/// The key of a client that a gateway calls for. It is never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClientKey(HeaderValue);

impl ClientKey {
    /// Checks that a text can be a key.
    ///
    /// # Errors
    /// When it cannot be a header.
    pub fn new(text: &str) -> Result<ClientKey, ApiKeyError> {
        let mut value = checked(text)?;
        value.set_sensitive(true);
        Ok(ClientKey(value))
    }

    /// The value of the header `x-earmark-client-key`.
    pub(crate) const fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(..)")
    }
}

fn checked(text: &str) -> Result<HeaderValue, ApiKeyError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ApiKeyError);
    }
    HeaderValue::from_str(text).map_err(|_| ApiKeyError)
}

/// Why a text is not a key. The message does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key: only visible ASCII characters are allowed, at least one")]
pub struct ApiKeyError;

impl ApiKey {
    /// Checks that a text can be a key.
    ///
    /// # Errors
    /// When it cannot be a header.
    pub fn new(text: &str) -> Result<ApiKey, ApiKeyError> {
        checked(text)?;
        let mut value = HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| ApiKeyError)?;
        value.set_sensitive(true);
        Ok(ApiKey(value))
    }

    /// The value of the header `authorization`.
    pub(crate) const fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let key = ApiKey::new("ek_secret").unwrap();
        assert_eq!(format!("{key:?}"), "ApiKey(..)");
        assert!(!format!("{:?}", key.header()).contains("secret"));
        let client = ClientKey::new("ek_secret").unwrap();
        assert_eq!(format!("{client:?} {:?}", client.header()), "ClientKey(..) Sensitive");
        assert!(ClientKey::new("a b").is_err());
        assert!(!format!("{:?}", ApiKey::new("secret\n").unwrap_err()).contains("secret"));
    }

    #[test]
    fn a_key_is_sent_as_a_bearer() {
        assert_eq!(ApiKey::new("ek_1").unwrap().header(), "Bearer ek_1");
        for text in ["", "a b", "a\r\nx: y", "é"] {
            assert!(ApiKey::new(text).is_err(), "{text:?}");
        }
    }
}
