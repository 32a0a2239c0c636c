//! Reads the usual form of a reserve, complete or call in one scan.
//!
//! The body of nearly every request is an object of known fields with plain texts and short numbers. Reading that form
//! takes a fifth of the instructions of the general parser. Everything else, mistakes included, is left to the general
//! parser, so a scan refuses whatever it does not know and never explains.

use earmark_admission::Amount;
use earmark_core::{JobId, LeaseId, LimitKey, NamespaceName, REQUIREMENTS_MAX};
use earmark_policy::Usage;

use super::{BATCH_MAX, CompleteBody, PARTS_INITIAL, Parts, PhantomData, ReserveBody, Text, named};
use crate::calls::CallOutcome;

/// Initial capacity for attributes; most calls have no more.
const ATTRIBUTES_INITIAL: usize = 8;
/// Digits of a number that fits into 64 bits, whatever they are.
const DIGITS_MAX: usize = 19;

impl ReserveBody {
    /// Reads a reserve in its usual form.
    pub(in super::super) fn scan(body: &[u8]) -> Option<ReserveBody> {
        let Lease { lease, job, amounts } = lease(body, Form::Reserve)?;
        if amounts.iter().any(|amount| amount.amount == 0) {
            return None;
        }
        Some(ReserveBody { lease_id: Text(lease), job_id: job, requirements: parts(amounts)? })
    }
}

impl CompleteBody {
    /// Reads a complete in its usual form.
    pub(in super::super) fn scan(body: &[u8]) -> Option<CompleteBody> {
        let Lease { lease, job, amounts } = lease(body, Form::Complete)?;
        Some(CompleteBody { lease_id: Text(lease), job_id: job, actuals: parts(amounts)?, labels: None })
    }
}

/// The amounts of a list of at least `MIN`.
fn parts<P, const MIN: usize>(amounts: Vec<Amount>) -> Option<Parts<P, MIN>> {
    (amounts.len() >= MIN).then_some(Parts { amounts, part: PhantomData })
}

/// The fields of a reserve or complete.
struct Lease {
    lease: LeaseId,
    job: Option<Text<JobId>>,
    amounts: Vec<Amount>,
}

/// Which request a body is. The names of its fields are compared as constants, which costs a few instructions each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Reserve,
    Complete,
}

/// A lease with its amounts.
fn lease(body: &[u8], form: Form) -> Option<Lease> {
    let mut scan = Scan { text: std::str::from_utf8(body).ok()?, at: 0 };
    let (mut lease, mut job, mut amounts) = (None, None, None);
    scan.fields(|scan, name| match name {
        "lease_id" => once(&mut lease, scan.text()?.parse().ok()?),
        "job_id" => once(&mut job, Text(scan.text()?.parse().ok()?)),
        "requirements" if form == Form::Reserve => once(&mut amounts, scan.amounts(form)?),
        "actuals" if form == Form::Complete => once(&mut amounts, scan.amounts(form)?),
        _ => None,
    })?;
    scan.end()?;
    Some(Lease { lease: lease?, job, amounts: amounts? })
}

/// A call in its usual form.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct UsualCall<'a> {
    pub(in super::super) lease: LeaseId,
    pub(in super::super) job: Option<JobId>,
    /// Names and values as they are written.
    pub(in super::super) attributes: Vec<(&'a str, &'a str)>,
    pub(in super::super) input_tokens_max: u32,
    pub(in super::super) output_tokens_max: u32,
}

impl<'a> UsualCall<'a> {
    /// Reads a call in its usual form.
    pub(in super::super) fn scan(body: &'a [u8]) -> Option<UsualCall<'a>> {
        let mut scan = Scan { text: std::str::from_utf8(body).ok()?, at: 0 };
        let call = UsualCall::read(&mut scan)?;
        scan.end()?;
        Some(call)
    }

    /// Reads a batch of calls in their usual form.
    pub(in super::super) fn scan_all(body: &'a [u8]) -> Option<Vec<UsualCall<'a>>> {
        batch(body, UsualCall::read)
    }

    fn read(scan: &mut Scan<'a>) -> Option<UsualCall<'a>> {
        let (mut lease, mut job, mut attributes, mut input, mut output) = (None, None, None, None, None);
        scan.fields(|scan, name| match name {
            "lease_id" => once(&mut lease, scan.text()?.parse().ok()?),
            "job_id" => once(&mut job, scan.text()?.parse().ok()?),
            "attributes" => once(&mut attributes, scan.attributes()?),
            "input_tokens_max" => once(&mut input, u32::try_from(scan.number()?).ok()?),
            "output_tokens_max" => once(&mut output, u32::try_from(scan.number()?).ok()?),
            _ => None,
        })?;
        let (input_tokens_max, output_tokens_max) = (input?, output?);
        Some(UsualCall { lease: lease?, job, attributes: attributes?, input_tokens_max, output_tokens_max })
    }
}

/// The end of a call in its usual form.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct UsualEnd<'a> {
    pub(in super::super) lease: LeaseId,
    /// Names and values as they are written.
    pub(in super::super) attributes: Vec<(&'a str, &'a str)>,
    pub(in super::super) usage: Option<Usage>,
    pub(in super::super) outcome: CallOutcome,
    pub(in super::super) policy_revision: Option<u64>,
    pub(in super::super) namespace: Option<NamespaceName>,
    /// Names and values as they are written.
    pub(in super::super) labels: Vec<(&'a str, &'a str)>,
}

impl<'a> UsualEnd<'a> {
    /// Reads the end of a call in its usual form.
    pub(in super::super) fn scan(body: &'a [u8]) -> Option<UsualEnd<'a>> {
        let mut scan = Scan { text: std::str::from_utf8(body).ok()?, at: 0 };
        let end = UsualEnd::read(&mut scan)?;
        scan.end()?;
        Some(end)
    }

    /// Reads a batch of ends of calls in their usual form.
    pub(in super::super) fn scan_all(body: &'a [u8]) -> Option<Vec<UsualEnd<'a>>> {
        batch(body, UsualEnd::read)
    }

    fn read(scan: &mut Scan<'a>) -> Option<UsualEnd<'a>> {
        let (mut lease, mut attributes, mut usage, mut outcome) = (None, None, None, None);
        let (mut policy_revision, mut namespace, mut labels) = (None, None, None);
        scan.fields(|scan, name| match name {
            "lease_id" => once(&mut lease, scan.text()?.parse().ok()?),
            "attributes" => once(&mut attributes, scan.attributes()?),
            "usage" => once(&mut usage, scan.usage()?),
            "outcome" => once(&mut outcome, CallOutcome::from_name(scan.text()?)?),
            "policy_revision" => once(&mut policy_revision, scan.number().filter(|revision| *revision > 0)?),
            "namespace" => once(&mut namespace, scan.text()?.parse().ok()?),
            "labels" => once(&mut labels, scan.attributes()?),
            _ => None,
        })?;
        let (lease, attributes, outcome, labels) = (lease?, attributes?, outcome?, labels.unwrap_or_default());
        Some(UsualEnd { lease, attributes, usage, outcome, policy_revision, namespace, labels })
    }
}

/// The items of a batch.
fn batch<'a, T>(body: &'a [u8], item: impl Fn(&mut Scan<'a>) -> Option<T>) -> Option<Vec<T>> {
    let mut scan = Scan { text: std::str::from_utf8(body).ok()?, at: 0 };
    let mut items = None;
    scan.fields(|scan, name| match name {
        "requests" => {
            let mut list = Vec::new();
            scan.expect(b'[')?;
            while list.len() < BATCH_MAX {
                list.push(item(scan)?);
                if !scan.take(b',') {
                    scan.expect(b']')?;
                    return once(&mut items, list);
                }
            }
            None
        }
        _ => None,
    })?;
    scan.end()?;
    items
}

/// Sets a field that may be there once.
fn once<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.is_none().then(|| *field = Some(value))
}

/// A position in a body.
struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    /// The next byte after spaces.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.at)? {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(*byte),
            }
        }
    }

    /// Takes the next byte after spaces if it is this one.
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.take(byte).then_some(())
    }

    /// Nothing but spaces follows.
    fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    /// A text up to the next quote. The parser of the value refuses escapes and control characters: no name, id or
    /// field has any.
    fn text(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let from = self.at;
        let length = memchr::memchr(b'"', self.text.as_bytes().get(from..)?)?;
        self.at = from + length + 1;
        self.text.get(from..from + length)
    }

    /// An object of texts without escapes. The rights of the caller check the names and values.
    fn attributes(&mut self) -> Option<Vec<(&'a str, &'a str)>> {
        let mut attributes = Vec::with_capacity(ATTRIBUTES_INITIAL);
        self.fields(|scan, name| {
            let value = scan.text()?;
            // JSON has no control characters in texts, and a backslash begins an escape.
            let is_usual = |text: &str| text.bytes().all(|byte| byte >= b' ' && byte != b'\\');
            (is_usual(name) && is_usual(value)).then(|| attributes.push((name, value)))
        })?;
        Some(attributes)
    }

    /// A usage without a service tier, which prices do not have.
    fn usage(&mut self) -> Option<Usage> {
        let (mut input, mut output, mut cached, mut reasoning) = (None, None, None, None);
        let (mut written, mut written_1h) = (None, None);
        self.fields(|scan, name| {
            let field = match name {
                "input_tokens" => &mut input,
                "output_tokens" => &mut output,
                "cached_input_tokens" => &mut cached,
                "cache_write_tokens" => &mut written,
                "cache_write_1h_tokens" => &mut written_1h,
                "reasoning_tokens" => &mut reasoning,
                _ => return None,
            };
            once(field, u32::try_from(scan.number()?).ok()?)
        })?;
        Some(Usage {
            input_tokens: input?,
            output_tokens: output?,
            cached_input_tokens: cached.unwrap_or(0),
            cache_write_tokens: written.unwrap_or(0),
            cache_write_1h_tokens: written_1h.unwrap_or(0),
            reasoning_tokens: reasoning.unwrap_or(0),
        })
    }

    /// A short number without sign, fraction or exponent.
    fn number(&mut self) -> Option<u64> {
        let first = self.peek()?;
        let from = self.at;
        let mut number = 0_u64;
        while let Some(byte @ b'0'..=b'9') = self.text.as_bytes().get(self.at) {
            number = number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
            self.at += 1;
        }
        let digits = self.at - from;
        let is_plain = (1..=DIGITS_MAX).contains(&digits) && (first != b'0' || digits == 1);
        is_plain.then_some(number)
    }

    /// An object. `field` reads the value of each field.
    fn fields(&mut self, mut field: impl FnMut(&mut Scan<'a>, &'a str) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Some(());
        }
        loop {
            let name = self.text()?;
            self.expect(b':')?;
            field(self, name)?;
            if !self.take(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// A list of amounts with different keys.
    fn amounts(&mut self, form: Form) -> Option<Vec<Amount>> {
        self.expect(b'[')?;
        let mut amounts: Vec<Amount> = Vec::with_capacity(PARTS_INITIAL);
        if self.take(b']') {
            return Some(amounts);
        }
        loop {
            let amount = self.amount(form)?;
            if amounts.len() == REQUIREMENTS_MAX || amounts.iter().any(|earlier| earlier.key == amount.key) {
                return None;
            }
            amounts.push(amount);
            if !self.take(b',') {
                return self.expect(b']').map(|()| amounts);
            }
        }
    }

    /// An amount without spaces, its key first, as most clients write it.
    fn compact_amount(&mut self, form: Form) -> Option<Amount> {
        let after_key = match form {
            Form::Reserve => "\",\"amount\":",
            Form::Complete => "\",\"actual_amount\":",
        };
        let rest = self.text.get(self.at..)?.strip_prefix("{\"key\":\"")?;
        let (key, rest) = rest.split_at_checked(memchr::memchr(b'"', rest.as_bytes())?)?;
        let rest = rest.strip_prefix(after_key)?;
        let mut number = Scan { text: rest, at: 0 };
        let amount = number.number()?;
        number.expect(b'}')?;
        let key = key.parse::<LimitKey>().ok()?;
        self.at = self.text.len() - rest.len() + number.at;
        Some(Amount { key, amount })
    }

    fn amount(&mut self, form: Form) -> Option<Amount> {
        if let Some(amount) = self.compact_amount(form) {
            return Some(amount);
        }
        let (mut key, mut namespace, mut amount) = (None, None, None);
        self.fields(|scan, name| match name {
            "key" => once(&mut key, Text(scan.text()?.parse::<LimitKey>().ok()?)),
            "namespace" => once(&mut namespace, Text(scan.text()?.parse::<NamespaceName>().ok()?)),
            "amount" if form == Form::Reserve => once(&mut amount, scan.number()?),
            "actual_amount" if form == Form::Complete => once(&mut amount, scan.number()?),
            _ => None,
        })?;
        Some(Amount { key: named(namespace, key?), amount: amount? })
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::SettleLabels;

    use super::super::super::calls::{CallBody, CompleteCallBody};
    use super::super::super::labels::LabelList;
    use super::super::Object;
    use super::*;

    const LEASE: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

    fn parsed(body: &str) -> Option<(LeaseId, Option<JobId>, Vec<Amount>)> {
        let Object(parsed) = serde_json::from_str::<Object<ReserveBody>>(body).ok()?;
        Some((parsed.lease_id.0, parsed.job_id.map(|job| job.0), parsed.requirements.amounts))
    }

    fn scanned(body: &str) -> Option<(LeaseId, Option<JobId>, Vec<Amount>)> {
        let scanned = ReserveBody::scan(body.as_bytes())?;
        Some((scanned.lease_id.0, scanned.job_id.map(|job| job.0), scanned.requirements.amounts))
    }

    #[test]
    fn the_usual_form_is_read_as_the_general_parser_reads_it() {
        for body in [
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{{"key":"a:rpm","amount":1}}]}}"#),
            format!(
                " {{ \"requirements\" : [ {{ \"amount\" : 9999999999999999999 , \"key\" : \"a/b|c\" }} ,\n{{\"key\":\"b\",\
                 \"namespace\":\"eu\",\"amount\":7}}]\t,\"job_id\":\"job:1\",\r\n\"lease_id\":\"{LEASE}\"}} "
            ),
        ] {
            assert!(scanned(&body).is_some(), "{body}");
            assert_eq!(scanned(&body), parsed(&body), "{body}");
        }
        let complete = format!(r#"{{"lease_id":"{LEASE}","actuals":[]}}"#);
        assert!(CompleteBody::scan(complete.as_bytes()).is_some_and(|body| body.actuals.amounts.is_empty()));
        let complete = format!(r#"{{"lease_id":"{LEASE}","actuals":[{{"key":"a","actual_amount":0}}]}}"#);
        assert!(CompleteBody::scan(complete.as_bytes()).is_some());
    }

    /// Every body that is one byte away from the usual form is read like the general parser reads it, or not at all.
    #[test]
    fn no_body_is_read_that_the_general_parser_refuses() {
        let body = format!(
            r#"{{"lease_id":"{LEASE}","job_id":"j","requirements":[{{"key":"a:rpm","amount":10}},{{"key":"b","amount":2}}]}}"#
        );
        for at in 0..body.len() {
            let (before, after) = (&body[..at], &body[at + 1..]);
            let mut damaged = vec![before.to_owned(), format!("{before}{after}")];
            for byte in b"{}[]\":,0123.-+eE \\abk_\t\x01\x7f".iter().map(|byte| char::from(*byte)) {
                damaged.push(format!("{before}{byte}{after}"));
                damaged.push(format!("{before}{byte}{}", &body[at..]));
            }
            for body in damaged {
                if let Some(scanned) = scanned(&body) {
                    assert_eq!(Some(scanned), parsed(&body), "{body}");
                }
            }
        }
    }

    const CALL: &str = r#"{"lease_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","job_id":"j","attributes":{"model":"gpt-4o","user":"\u00fc: 1"},"input_tokens_max":10,"output_tokens_max":0}"#;

    /// All bodies that are one byte away from this one.
    fn one_byte_away(plain: &str) -> Vec<String> {
        let mut bodies = Vec::new();
        for at in (0..plain.len()).filter(|at| plain.is_char_boundary(*at) && plain.is_char_boundary(at + 1)) {
            let (before, after) = (&plain[..at], &plain[at + 1..]);
            bodies.push(format!("{before}{after}"));
            for byte in b"{}[]\":,0123.-+eE \\abk_\t\x01\x7f".iter().map(|byte| char::from(*byte)) {
                bodies.push(format!("{before}{byte}{after}"));
                bodies.push(format!("{before}{byte}{}", &plain[at..]));
            }
        }
        bodies
    }

    /// Every call that is one byte away from the usual form is read like the general parser reads it, or not at all.
    #[test]
    fn no_call_is_read_otherwise_than_by_the_general_parser() {
        let plain = CALL.replace("\\u00fc", "ü");
        let mut bodies = vec![plain.clone(), CALL.to_owned(), plain.replace("10,", "4294967296,")];
        bodies.extend(one_byte_away(&plain));
        let mut read = 0;
        for body in bodies {
            let Some(scanned) = UsualCall::scan(body.as_bytes()) else { continue };
            read += 1;
            let Object(parsed) = serde_json::from_str::<Object<CallBody>>(&body).unwrap_or_else(|_| panic!("{body}"));
            let pairs = parsed.attributes.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let parsed = UsualCall {
                lease: parsed.lease_id.0,
                job: parsed.job_id.map(|job| job.0),
                attributes: pairs.collect(),
                input_tokens_max: parsed.input_tokens_max.0,
                output_tokens_max: parsed.output_tokens_max.0,
            };
            assert_eq!(scanned, parsed, "{body}");
        }
        assert!(UsualCall::scan(plain.as_bytes()).is_some() && read > 100, "{read}");
        assert!(UsualCall::scan(CALL.as_bytes()).is_none(), "an escape is left to the general parser");
    }

    const END: &str = r#"{"lease_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","attributes":{"model":"m","user":"ü: 1"},"usage":{"input_tokens":10,"output_tokens":0,"cached_input_tokens":3,"cache_write_tokens":2,"cache_write_1h_tokens":1,"reasoning_tokens":4},"outcome":"done","policy_revision":7,"namespace":"eu","labels":{"model":"m"}}"#;

    /// Every end of a call that is one byte away from the usual form is read like the general parser reads it, or not at
    /// all.
    #[test]
    fn no_end_is_read_otherwise_than_by_the_general_parser() {
        let mut bodies = vec![END.to_owned(), END.replace("\"policy_revision\":7,", "")];
        bodies.extend(one_byte_away(END));
        let mut read = 0;
        for body in bodies {
            let Some(scanned) = UsualEnd::scan(body.as_bytes()) else { continue };
            read += 1;
            let parsed = serde_json::from_str::<Object<CompleteCallBody>>(&body);
            let Object(parsed) = parsed.unwrap_or_else(|_| panic!("{body}"));
            let labels = LabelList::check(parsed.labels).map_err(|_| ());
            assert_eq!(SettleLabels::new(scanned.labels.clone()).map_err(|_| ()), labels, "{body}");
            let pairs = parsed.attributes.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let parsed = UsualEnd {
                lease: parsed.lease_id.0,
                attributes: pairs.collect(),
                usage: parsed.usage.map(|Object(usage)| usage.into_usage()),
                outcome: parsed.outcome.0,
                policy_revision: parsed.policy_revision.map(|revision| revision.0),
                namespace: parsed.namespace.map(|name| name.0),
                labels: scanned.labels.clone(),
            };
            assert_eq!(scanned, parsed, "{body}");
        }
        assert!(UsualEnd::scan(END.as_bytes()).is_some() && read > 100, "{read}");
    }

    #[test]
    fn a_batch_in_its_usual_form_has_its_items_in_order() {
        let other = END.replace("\"done\"", "\"unknown\"");
        let read = |items: &str| {
            let body = format!(r#"{{ "requests" : {items}}}"#);
            let ends = UsualEnd::scan_all(body.as_bytes())?;
            Some(ends.iter().map(|end| end.outcome).collect::<Vec<_>>())
        };
        assert_eq!(read(&format!("[{END},{other}]")), Some(vec![CallOutcome::Done, CallOutcome::Unknown]));
        let many = |count| format!("[{}]", vec![END; count].join(","));
        assert_eq!(read(&many(BATCH_MAX)).map(|ends| ends.len()), Some(BATCH_MAX));
        for items in ["[]", "{}", "", "[1]", &many(BATCH_MAX + 1), &format!("[{END},]"), &format!("[{END}],\"a\":1")] {
            assert_eq!(read(items), None, "{items}");
        }
        assert_eq!(UsualEnd::scan_all(b"{}"), None);
    }

    #[test]
    fn everything_else_is_left_to_the_general_parser() {
        let amount = r#"{"key":"a","amount":1}"#;
        for body in [
            String::new(),
            "[]".into(),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{amount},{amount}]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","lease_id":"{LEASE}","requirements":[{amount}]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{amount}],"x":1}}"#),
            format!(r#"{{"lease_id":"{LEASE}","job_id":null,"requirements":[{amount}]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{{"key":"a","amount":0}}]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{{"key":"a","amount":01}}]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{{"key":"a","amount":1.0}}]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{{"key":"\u0061","amount":1}}]}}"#),
            format!(r#"{{"lease_id":"{LEASE}","requirements":[{amount}]}} x"#),
        ] {
            assert!(ReserveBody::scan(body.as_bytes()).is_none(), "{body}");
        }
    }
}
