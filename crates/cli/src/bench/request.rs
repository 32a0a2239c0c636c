//! Prebuilt HTTP requests. Each call changes only the lease and the numbers in the keys, in place, because the load
//! generator and the server share the machine.

use earmark_core::LeaseId;

use super::job::{Call, INPUT_TOKENS, MODEL_DIGITS, OUTPUT_TOKENS, Owner, Part, TENANT_DIGITS};

const LEASE_BYTES: usize = 26;
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Byte offsets of the variable parts of one call.
#[derive(Debug, Default)]
struct Offsets {
    lease: usize,
    models: Vec<usize>,
    tenants: Vec<usize>,
}

/// The bytes of one HTTP request for one or more calls.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    offsets: Vec<Offsets>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Reserve,
    Complete,
    /// A reserve by attributes; see [`policy`](super::job::policy).
    Call,
}

impl Request {
    /// Builds a request for `calls` calls. One call uses the plain endpoint, more use the batch endpoint.
    pub(super) fn new(action: Action, headers: &str, parts: &[Part], calls: usize) -> Request {
        if action == Action::Call {
            return Request::call(headers);
        }
        let (path, list, amount) = match action {
            Action::Reserve => ("/v1/reserve", "requirements", "amount"),
            Action::Complete | Action::Call => ("/v1/complete", "actuals", "actual_amount"),
        };
        let wanted: Vec<(&Part, u64)> = parts
            .iter()
            .filter_map(|part| match action {
                Action::Reserve => Some((part, part.amount)),
                Action::Complete | Action::Call => Some((part, part.actual_amount()?)),
            })
            .collect();
        let mut body = String::new();
        let mut offsets = Vec::with_capacity(calls);
        for call in 0..calls {
            let mut found = Offsets::default();
            body += if call == 0 { "{\"lease_id\":\"" } else { ",{\"lease_id\":\"" };
            found.lease = body.len();
            body += &format!("{:0<LEASE_BYTES$}\",\"{list}\":[", "");
            for (index, (part, value)) in wanted.iter().enumerate() {
                body += if index == 0 { "{\"key\":\"" } else { ",{\"key\":\"" };
                let number_at = body.len() + part.before.len();
                match part.owner {
                    Owner::Model => found.models.push(number_at),
                    Owner::Tenant => found.tenants.push(number_at),
                }
                body += &format!("{}\",\"{amount}\":{value}}}", part.key(0));
            }
            body += "]}";
            offsets.push(found);
        }
        let (path, start, end) =
            if calls == 1 { (path.to_owned(), "", "") } else { (format!("{path}/batch"), "{\"requests\":[", "]}") };
        let head = format!(
            "POST {path} HTTP/1.1\r\n{headers}content-type: application/json\r\n\
             content-length: {}\r\n\r\n{start}",
            start.len() + body.len() + end.len()
        );
        for found in &mut offsets {
            found.lease += head.len();
            let numbers = found.models.iter_mut().chain(&mut found.tenants);
            numbers.for_each(|number| *number += head.len());
        }
        Request { bytes: (head + &body + end).into_bytes(), offsets }
    }

    /// A call by its attributes.
    fn call(headers: &str) -> Request {
        let (mut body, mut found) = ("{\"lease_id\":\"".to_owned(), Offsets::default());
        found.lease = body.len();
        body += &format!("{:0<LEASE_BYTES$}\",\"attributes\":{{\"model\":\"model-", "");
        found.models.push(body.len());
        body += &format!("{:0<MODEL_DIGITS$}\",\"tenant\":\"tenant-", "");
        found.tenants.push(body.len());
        body += &format!("{:0<TENANT_DIGITS$}\"}},\"input_tokens_max\":{INPUT_TOKENS},", "");
        body += &format!("\"output_tokens_max\":{OUTPUT_TOKENS}}}");
        let head = format!(
            "POST /v1/calls HTTP/1.1\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        found.lease += head.len();
        found.models.iter_mut().chain(&mut found.tenants).for_each(|number| *number += head.len());
        Request { bytes: (head + &body).into_bytes(), offsets: vec![found] }
    }

    /// Writes these calls into the request. Their number is that of `new`.
    pub(super) fn fill(&mut self, calls: impl IntoIterator<Item = Call>) {
        for (found, call) in self.offsets.iter().zip(calls) {
            write_lease(&mut self.bytes[found.lease..][..LEASE_BYTES], call.lease);
            for &at in &found.models {
                write_number(&mut self.bytes[at..][..MODEL_DIGITS], call.model);
            }
            for &at in &found.tenants {
                write_number(&mut self.bytes[at..][..TENANT_DIGITS], call.tenant);
            }
        }
    }

    pub(super) fn calls(&self) -> usize {
        self.offsets.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) fn write_number(digits: &mut [u8], number: usize) {
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

fn write_lease(text: &mut [u8], lease: LeaseId) {
    let mut rest = lease.to_u128();
    for character in text.iter_mut().rev() {
        *character = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::job::parts;
    use super::*;

    fn filled(action: Action, limits: usize, calls: &[Call]) -> (String, Value) {
        let mut request = Request::new(action, "host: a:1\r\n", &parts(limits), calls.len());
        // The values of an earlier call must be overwritten.
        let other = Call { lease: LeaseId::from_u128(u128::MAX), model: 19, tenant: 999 };
        request.fill(calls.iter().map(|_| other));
        request.fill(calls.iter().copied());
        let text = String::from_utf8(request.bytes().to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{text}");
        (head.lines().next().unwrap().to_owned(), serde_json::from_str(body).unwrap())
    }

    #[test]
    fn one_call_is_a_plain_request_with_its_lease_and_keys() {
        let lease: LeaseId = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let (line, body) = filled(Action::Reserve, 4, &[Call { lease, model: 7, tenant: 42 }]);
        assert_eq!(line, "POST /v1/reserve HTTP/1.1");
        assert_eq!(
            body,
            json!({"lease_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "requirements": [
                {"key": "bench:model-07:rpm", "amount": 1},
                {"key": "bench:model-07:tpm", "amount": 1500},
                {"key": "bench:model-07:concurrency", "amount": 1},
                {"key": "bench:tenant-0042:tpm", "amount": 1500},
            ]})
        );
    }

    #[test]
    fn a_call_by_attributes_names_its_model_and_tenant() {
        let lease: LeaseId = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let (line, body) = filled(Action::Call, 4, &[Call { lease, model: 7, tenant: 42 }]);
        assert_eq!(line, "POST /v1/calls HTTP/1.1");
        let attributes = json!({"model": "model-07", "tenant": "tenant-0042"});
        let expected = json!({"lease_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "attributes": attributes,
            "input_tokens_max": 1_000, "output_tokens_max": 500});
        assert_eq!(body, expected);
    }

    #[test]
    fn several_calls_are_a_batch_in_their_order() {
        let call = |number: usize| Call { lease: LeaseId::from_u128(number as u128), model: number, tenant: number };
        let (line, body) = filled(Action::Complete, 4, &[call(1), call(2)]);
        assert_eq!(line, "POST /v1/complete/batch HTTP/1.1");
        assert_eq!(body["requests"].as_array().unwrap().len(), 2);
        assert_eq!(
            body["requests"][1],
            json!({"lease_id": "00000000000000000000000002", "actuals": [
                {"key": "bench:model-02:tpm", "actual_amount": 500},
                {"key": "bench:tenant-0002:tpm", "actual_amount": 500},
            ]})
        );
        let (_, body) = filled(Action::Reserve, 32, &[call(3); 256]);
        assert_eq!(body["requests"][255]["requirements"].as_array().unwrap().len(), 32);
    }
}
