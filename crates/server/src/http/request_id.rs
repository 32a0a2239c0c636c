//! Request ids, to find a request in the logs.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use earmark_core::contains_api_key;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is accepted from a client, in bytes.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 128;

const HEX: &[u8; 16] = b"0123456789abcdef";
const PREFIX_BYTES: usize = 8;
const NUMBER_BYTES: usize = 12;
const MADE_BYTES: usize = PREFIX_BYTES + 1 + NUMBER_BYTES;

/// Generates ids: a random prefix per process, and a number.
pub(crate) struct RequestIds {
    prefix: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> RequestIds {
        // The random state of the standard hasher saves a dependency on a random generator.
        RequestIds { prefix: RandomState::new().hash_one(0), next: AtomicU64::new(0) }
    }

    /// The client's own id if it is safe to log, else a new one.
    pub(crate) fn of(&self, headers: &HeaderMap) -> RequestId {
        // A look-up costs more: few requests have more than five headers.
        let sent = headers.iter().find(|(name, _)| **name == REQUEST_ID);
        match sent.map(|(_, id)| id) {
            Some(id) if is_fit(id.as_bytes()) => RequestId::Sent(id.clone()),
            _ => self.make(),
        }
    }

    fn make(&self) -> RequestId {
        let mut id = [b'-'; MADE_BYTES];
        hex(&mut id[..PREFIX_BYTES], self.prefix);
        hex(&mut id[PREFIX_BYTES + 1..], self.next.fetch_add(1, Ordering::Relaxed));
        RequestId::Made(id)
    }
}

/// The id of one request. A generated id is copied without an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestId {
    /// The client's own.
    Sent(HeaderValue),
    Made([u8; MADE_BYTES]),
}

impl RequestId {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            RequestId::Sent(id) => id.to_str().unwrap_or_default(),
            RequestId::Made(id) => std::str::from_utf8(id).unwrap_or_default(),
        }
    }

    /// The response header. HTTP/2 has a table of the headers of a connection, from which a value that does not come
    /// again would only drive out others.
    pub(crate) fn into_header(self) -> HeaderValue {
        let mut header = match self {
            RequestId::Sent(id) => id,
            RequestId::Made(id) => HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("-")),
        };
        // This is how a value is kept out of that table.
        header.set_sensitive(true);
        header
    }
}

fn is_fit(id: &[u8]) -> bool {
    let is_visible = (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic);
    is_visible && !std::str::from_utf8(id).is_ok_and(contains_api_key)
}

/// Writes the lower hexadecimal digits of `number`.
fn hex(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = HEX[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(id: &[u8]) -> HeaderMap {
        HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_bytes(id).unwrap())])
    }

    #[test]
    fn made_ids_differ_and_share_their_prefix() {
        let ids = RequestIds::new();
        let (first, second) = (ids.of(&HeaderMap::new()), ids.of(&HeaderMap::new()));
        assert_ne!(first, second);
        assert_eq!(first.as_str()[..8], second.as_str()[..8]);
        assert!(first.as_str().ends_with("-000000000000"));
        assert!(second.as_str().ends_with("-000000000001"));
        assert_eq!(second.as_str(), second.clone().into_header());
    }

    #[test]
    fn a_clients_id_is_kept_only_if_it_is_short_and_visible() {
        let ids = RequestIds::new();
        for (id, is_kept) in [
            (&b"a"[..], true),
            (&[b'~'; 128], true),
            (&[b'a'; 129], false),
            (b"", false),
            (b"a b", false),
            (b"a\tb", false),
            (b"\xc3\xa9", false),
            (b"emk_4m8qk2v7d1xz", false),
        ] {
            assert_eq!(ids.of(&headers(id)).into_header().as_bytes() == id, is_kept, "{id:?}");
        }
    }
}
