//! The usual JSON of calls, written and read in a fraction of the instructions of serde.
//!
//! Nearly every body has one form, byte for byte. Another one is read by serde, and so are mistakes.

use std::io::Write as _;

use earmark_core::LeaseId;

use super::call::{CallReply, CompleteReply, PartReply};

/// Appends a name or value as a JSON string.
fn put_text(json: &mut Vec<u8>, text: &str) -> serde_json::Result<()> {
    let needs_escape = |found, byte| found | (byte < b' ') | (byte == b'"') | (byte == b'\\');
    if text.bytes().fold(false, needs_escape) {
        return serde_json::to_writer(json, text);
    }
    json.push(b'"');
    json.extend_from_slice(text.as_bytes());
    json.push(b'"');
    Ok(())
}

/// Writes an object.
pub(super) struct Object<'a>(&'a mut Vec<u8>);

impl<'a> Object<'a> {
    /// Writes an object that begins with the id of its lease.
    pub(super) fn of(lease: LeaseId, json: &'a mut Vec<u8>) -> Object<'a> {
        // Writing to a vector does not fail.
        _ = write!(json, r#"{{"lease_id":"{lease}""#);
        Object(json)
    }

    /// Begins a field, whose name needs no escape.
    fn field(&mut self, name: &str) -> &mut Vec<u8> {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
        self.0
    }

    pub(super) fn text(&mut self, name: &str, value: Option<&str>) -> serde_json::Result<()> {
        value.map_or(Ok(()), |value| put_text(self.field(name), value))
    }

    pub(super) fn number(&mut self, name: &str, value: Option<u64>) -> serde_json::Result<()> {
        value.map_or(Ok(()), |value| serde_json::to_writer(self.field(name), &value))
    }

    pub(super) fn texts<'t>(
        &mut self,
        name: &str,
        pairs: impl Iterator<Item = (&'t str, &'t str)>,
    ) -> serde_json::Result<()> {
        let json = self.field(name);
        json.push(b'{');
        for (place, (name, value)) in pairs.enumerate() {
            if place > 0 {
                json.push(b',');
            }
            put_text(json, name)?;
            json.push(b':');
            put_text(json, value)?;
        }
        json.push(b'}');
        Ok(())
    }

    pub(super) fn value(&mut self, name: &str, value: Option<&impl serde::Serialize>) -> serde_json::Result<()> {
        value.map_or(Ok(()), |value| serde_json::to_writer(self.field(name), value))
    }

    pub(super) fn end(self) {
        self.0.push(b'}');
    }
}

/// The rest of a body.
pub(crate) struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    pub(super) fn of(body: &'a [u8]) -> Option<Rest<'a>> {
        std::str::from_utf8(body).ok().map(Rest)
    }

    /// Whether the body has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes this text if it comes next.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    pub(super) fn expect(&mut self, text: &str) -> Option<()> {
        self.take(text).then_some(())
    }

    /// Takes a text up to its closing quote, which it takes too. Names and numbers have no escapes.
    fn text(&mut self) -> Option<&'a str> {
        let (text, rest) = self.0.split_once('"')?;
        self.0 = rest;
        Some(text)
    }

    fn number(&mut self) -> Option<u64> {
        let end = self.0.bytes().position(|byte| !byte.is_ascii_digit())?;
        let (digits, rest) = self.0.split_at_checked(end)?;
        // JSON has no other number that begins with 0.
        let is_plain = digits == "0" || !digits.starts_with('0');
        self.0 = rest;
        digits.parse().ok().filter(|_| is_plain)
    }

    /// Takes a list of limits with their amounts, behind its opening bracket.
    fn parts(&mut self, amount: &str) -> Option<Vec<PartReply>> {
        let mut parts = Vec::with_capacity(4);
        if self.take("]") {
            return Some(parts);
        }
        loop {
            self.expect("{\"key\":\"")?;
            let key = self.text()?.parse().ok()?;
            self.expect(amount)?;
            let amount = self.number()?;
            let namespace = match self.take(",\"namespace\":\"") {
                true => Some(self.text()?.parse().ok()?),
                false => None,
            };
            self.expect("}")?;
            parts.push(PartReply { key, amount, namespace });
            if !self.take(",") {
                return self.expect("]").map(|()| parts);
            }
        }
    }
}

/// The answer to a call that is plainly allowed.
pub(super) fn call(rest: &mut Rest<'_>) -> Option<CallReply> {
    rest.expect(r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":"#)?;
    let reserved_at_unix_ms = rest.number()?;
    rest.expect(r#","error":"","requirements":["#)?;
    let requirements = rest.parts(",\"amount\":")?;
    let policy_revision = match rest.take(",\"policy_revision\":") {
        true => Some(rest.number()?),
        false => None,
    };
    rest.expect("}")?;
    Some(CallReply { allowed: true, reserved_at_unix_ms, requirements, policy_revision, ..CallReply::default() })
}

/// The answer to the end of a call that is plainly settled.
pub(super) fn completed(rest: &mut Rest<'_>) -> Option<CompleteReply> {
    rest.expect(r#"{"ok":true,"error":"","reconciled":true,"actuals":["#)?;
    let actuals = rest.parts(",\"actual_amount\":")?;
    rest.expect(",\"cost\":")?;
    let cost = match rest.take("null") {
        true => None,
        false => {
            rest.expect("\"")?;
            let digits = rest.text().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
            Some(digits.to_owned())
        }
    };
    rest.expect("}")?;
    Some(CompleteReply { ok: true, reconciled: true, actuals, cost, ..CompleteReply::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":1700000000123,"error":"","requirements":[{"key":"a:rpm","amount":1},{"key":"b","amount":18446744073709551615,"namespace":"eu"}],"policy_revision":7}"#;
    const COMPLETED: &str = r#"{"ok":true,"error":"","reconciled":true,"actuals":[{"key":"a:rpm","actual_amount":0},{"key":"b","actual_amount":12,"namespace":"eu"}],"cost":"34"}"#;

    /// All bodies that are one byte away from this one.
    fn one_byte_away(plain: &str) -> Vec<String> {
        let mut bodies = vec![plain.to_owned()];
        for at in 0..plain.len() {
            let (before, after) = (&plain[..at], &plain[at + 1..]);
            bodies.push(format!("{before}{after}"));
            bodies.push(before.to_owned());
            for byte in b"{}[]\":,0123.-+eE \\abk_!\t\x01\x7f".iter().map(|byte| char::from(*byte)) {
                bodies.push(format!("{before}{byte}{after}"));
                bodies.push(format!("{before}{byte}{}", &plain[at..]));
            }
        }
        bodies
    }

    #[track_caller]
    fn check<T: serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
        plain: &str,
        read: impl Fn(&mut Rest<'_>) -> Option<T>,
    ) {
        let mut count = 0;
        for body in one_byte_away(plain) {
            let mut rest = Rest::of(body.as_bytes()).unwrap();
            let Some(found) = read(&mut rest).filter(|_| rest.is_empty()) else { continue };
            count += 1;
            assert_eq!(Some(found), serde_json::from_str::<T>(&body).ok(), "{body}");
        }
        assert!(count > 20, "{count}");
        let mut rest = Rest(plain);
        assert!(read(&mut rest).is_some() && rest.is_empty());
    }

    /// Every answer that is one byte away from the usual form is read as serde reads it, or not at all.
    #[test]
    fn no_answer_is_read_otherwise_than_by_serde() {
        check(CALL, call);
        check(COMPLETED, completed);
        check(&COMPLETED.replace("\"34\"", "null"), completed);
        check(&CALL.replace(",\"policy_revision\":7", ""), call);
    }

    #[test]
    fn texts_are_written_as_serde_writes_them() {
        for text in ["", "gpt-4o", "a\"b", "a\\b", "\n", "\u{7f}", "ü", "日", "\u{1}"] {
            let mut json = Vec::new();
            put_text(&mut json, text).unwrap();
            assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string(text).unwrap());
        }
    }
}
