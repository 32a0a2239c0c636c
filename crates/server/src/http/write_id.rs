//! The identity of a write: a client id with its sequence, or an idempotency key in the body or in a header.

use axum::http::{HeaderMap, HeaderName};
use earmark_core::{ClientId, IdempotencyKey, WriteId};
use earmark_proto::convert::NOT_WITH_KEY;
use serde::Serialize;

use super::operation::Sequence;
use super::parse::Text;

/// The header of draft-ietf-httpapi-idempotency-key-header.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The fields of a body that identify a write.
pub(super) struct IdFields {
    pub(super) client_id: Option<Text<ClientId>>,
    pub(super) sequence: Option<Sequence>,
    pub(super) idempotency_key: Option<Text<IdempotencyKey>>,
}

impl IdFields {
    /// The identity of the write, with the key of the header. The error names the field.
    pub(super) fn identify(self, in_header: Option<IdempotencyKey>) -> Result<WriteId, String> {
        let IdFields { client_id, sequence, idempotency_key } = self;
        let in_body = idempotency_key.map(|key| key.0);
        if let (Some(in_body), Some(in_header)) = (&in_body, &in_header)
            && in_body != in_header
        {
            return Err("idempotency_key: differs from the header Idempotency-Key; send one of them".to_owned());
        }
        match (in_body.or(in_header), client_id, sequence) {
            (Some(_), Some(_), _) => Err(format!("client_id: {NOT_WITH_KEY}")),
            (Some(_), None, Some(_)) => Err(format!("sequence: {NOT_WITH_KEY}")),
            (Some(key), None, None) => Ok(WriteId::Key(key)),
            (None, Some(client), Some(sequence)) => {
                Ok(WriteId::Sequence { client: client.0, sequence: sequence.get() })
            }
            (None, None, _) => Err("client_id is required".to_owned()),
            (None, Some(_), None) => Err("sequence is required".to_owned()),
        }
    }
}

/// The key in the header: a structured-field string (`"evt_1"`), or the bare key, as many webhooks send it.
pub(super) fn header_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, String> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("Idempotency-Key: found two headers, allowed is one".to_owned());
    }
    let text = value.to_str().map_err(|_| "Idempotency-Key: found bytes beyond visible ASCII".to_owned())?.trim();
    let key = match text.strip_prefix('"') {
        None => text.to_owned(),
        Some(quoted) => unquoted(quoted).ok_or("Idempotency-Key: found a string without its closing quote")?,
    };
    match IdempotencyKey::new(&key) {
        Ok(key) => Ok(Some(key)),
        Err(error) => Err(format!("Idempotency-Key: {}", error.mistake)),
    }
}

/// The text of a structured-field string, after its opening quote.
fn unquoted(quoted: &str) -> Option<String> {
    let (mut text, mut rest) = (String::new(), quoted.chars());
    loop {
        match rest.next()? {
            '"' => return rest.as_str().is_empty().then_some(text),
            '\\' => text.push(rest.next().filter(|character| matches!(character, '"' | '\\'))?),
            character => text.push(character),
        }
    }
}

/// The identity of a committed write, in entries and in the change log.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum WriteIdWire<'a> {
    Sequence { client_id: &'a str, sequence: u64 },
    Key { idempotency_key: &'a str },
}

impl<'a> WriteIdWire<'a> {
    pub(super) fn of(id: &'a WriteId) -> WriteIdWire<'a> {
        match id {
            WriteId::Sequence { client, sequence } => {
                WriteIdWire::Sequence { client_id: client.as_str(), sequence: *sequence }
            }
            WriteId::Key(key) => WriteIdWire::Key { idempotency_key: key.as_str() },
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_header_is_a_string_or_a_bare_key_and_everything_else_is_explained() {
        let read = |values: &[&str]| {
            let values = values.iter().map(|value| (IDEMPOTENCY_KEY, HeaderValue::from_str(value).unwrap()));
            header_key(&values.collect()).map(|key| key.map(|key| key.to_string()))
        };
        assert_eq!(read(&[]), Ok(None));
        for text in ["evt_1", "\"evt_1\"", "  evt_1 "] {
            assert_eq!(read(&[text]), Ok(Some("evt_1".to_owned())), "{text}");
        }
        assert_eq!(read(&[r#""a\"b\\c""#]), Ok(Some(r#"a"b\c"#.to_owned())));
        for (values, mistake) in [
            (&["a", "b"][..], "found two headers"),
            (&["\"a"], "without its closing quote"),
            (&["\"a\";p=1"], "without its closing quote"),
            (&[r#""a\b""#], "without its closing quote"),
            (&["\"\""], "found 0 bytes, allowed are 1 to 255 bytes of visible ASCII without spaces"),
            (&["a b"], "found ' ' at byte 1"),
            (&[&"k".repeat(256)], "found 256 bytes"),
        ] {
            let error = read(values).unwrap_err();
            assert!(error.starts_with("Idempotency-Key: ") && error.contains(mistake), "{error}");
        }
    }
}
