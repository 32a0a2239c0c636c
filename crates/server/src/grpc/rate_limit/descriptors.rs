//! The descriptors of a request: attributes, and entries that say what to do with them.

use earmark_core::{ATTRIBUTES_MAX, REQUIREMENTS_MAX, check_attribute_name, quoted};
use earmark_policy::{HitsUsed, OUTPUT_BOUND_ATTRIBUTE as OUTPUT_TOKENS_MAX, Usage};
use earmark_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use earmark_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use earmark_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use super::lease::{HeldLease, RequestUuid};
use crate::caller::{AttributeRefusal, Caller};
use crate::calls::{Descriptor, HeldUsage};

/// Descriptors in a request: as many as a lease has limits.
pub(super) const DESCRIPTORS_MAX: usize = REQUIREMENTS_MAX;

/// Entries of a descriptor: as many as a call has attributes.
const ENTRIES_MAX: usize = ATTRIBUTES_MAX;

/// Entries with this prefix are no attributes.
const PREFIX: &str = "earmark_";
/// Says that the lease stays open until Envoy settles it. Its only value is [`AT_END`].
const SETTLE: &str = "earmark_settle";
const AT_END: &str = "at_end";
/// The lease that a stream held, as the answer to its first request gave it.
const LEASE: &str = "earmark_lease";
/// The id that Envoy generated for the request. A retry with it gets the first answer.
const REQUEST_ID: &str = "earmark_request_id";
/// The details and the code of the response: `%RESPONSE_CODE_DETAILS% %RESPONSE_CODE%`.
const RESPONSE: &str = "earmark_response";
/// The details of a response that the upstream sent, with a space.
const BY_UPSTREAM: &str = "via_upstream ";
const INPUT_TOKENS_MAX: &str = "earmark_input_tokens_max";
/// The parts of a usage, in the order of [`Entries::usage`].
const USAGE: [&str; 6] = [
    "earmark_input_tokens",
    "earmark_output_tokens",
    "earmark_cached_input_tokens",
    "earmark_cache_write_tokens",
    "earmark_cache_write_1h_tokens",
    "earmark_reasoning_tokens",
];

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// The configuration of Envoy is wrong for every request.
    Configuration(String),
    /// A value is wrong, which a client may have sent.
    Value(String),
}

/// A request, by what each descriptor asks for. The numbers are the places of descriptors.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The number of descriptors.
    pub(super) count: usize,
    /// Streams that ended.
    pub(super) settlements: Vec<Settlement>,
    /// Descriptors that only check.
    pub(super) checks: Vec<(usize, Descriptor)>,
    /// Descriptors that take.
    pub(super) takes: Vec<(usize, Descriptor)>,
    /// Whether Envoy settles the lease at the end of its stream.
    pub(super) holds: bool,
    pub(super) request_id: Option<RequestUuid>,
}

/// A stream that ended.
#[derive(Debug)]
pub(super) struct Settlement {
    pub(super) held: HeldLease,
    pub(super) used: HeldUsage,
}

/// The entries of a descriptor, those that are no attributes apart.
#[derive(Default)]
struct Entries<'a> {
    attributes: Vec<(String, String)>,
    lease: Option<&'a str>,
    request_id: Option<&'a str>,
    holds: bool,
    response: Option<&'a str>,
    tokens_max: [Option<&'a str>; 2],
    usage: [Option<&'a str>; USAGE.len()],
}

pub(super) fn parse(caller: &Caller, request: RateLimitRequest) -> Result<Parsed, Mistake> {
    let RateLimitRequest { descriptors, hits_addend, .. } = request;
    let count = descriptors.len();
    if count == 0 || count > DESCRIPTORS_MAX {
        let what = format!("descriptors: found {count}, allowed are 1 to {DESCRIPTORS_MAX}");
        return Err(Mistake::Configuration(what));
    }
    let (settlements, checks, takes) = (Vec::new(), Vec::new(), Vec::new());
    let mut parsed = Parsed { count, settlements, checks, takes, holds: false, request_id: None };
    for (place, descriptor) in descriptors.iter().enumerate() {
        one(&mut parsed, caller, (place, descriptor), hits_addend).map_err(|mistake| mistake.at(place))?;
    }
    Ok(parsed)
}

impl Mistake {
    fn at(self, place: usize) -> Mistake {
        match self {
            Mistake::Configuration(what) => Mistake::Configuration(format!("descriptors[{place}].{what}")),
            Mistake::Value(what) => Mistake::Value(format!("descriptors[{place}].{what}")),
        }
    }
}

fn one(
    parsed: &mut Parsed,
    caller: &Caller,
    (place, descriptor): (usize, &RateLimitDescriptor),
    hits_addend: u32,
) -> Result<(), Mistake> {
    let stated = stated_hits(descriptor)?;
    let entries = Entries::of(&descriptor.entries)?;
    if let Some(text) = entries.lease {
        let held = HeldLease::parse(text).map_err(|what| Mistake::Configuration(format!("{LEASE}: {what}")))?;
        parsed.settlements.push(Settlement { held, used: entries.used(stated) });
        return Ok(());
    }
    parsed.holds |= entries.holds;
    if let Some(id) = entries.request_id.and_then(RequestUuid::parse) {
        parsed.request_id = Some(id);
    }
    let tokens_max = entries.tokens_max()?;
    let attributes = caller.attributes(entries.attributes).map_err(|refusal| match refusal {
        AttributeRefusal::Malformed(what) => Mistake::Value(format!("entries: {what}")),
        AttributeRefusal::Forbidden(error) => Mistake::Value(format!("entries: {}", error.message())),
    })?;
    match stated {
        Some(0) => parsed.checks.push((place, Descriptor { attributes, hits: 1, tokens_max })),
        Some(hits) => parsed.takes.push((place, Descriptor { attributes, hits, tokens_max })),
        None => parsed.takes.push((place, Descriptor { attributes, hits: hits_addend.max(1), tokens_max })),
    }
    Ok(())
}

/// The hits that a descriptor states itself.
fn stated_hits(descriptor: &RateLimitDescriptor) -> Result<Option<u32>, Mistake> {
    let wrong = |what: String| Err(Mistake::Configuration(what));
    if descriptor.entries.is_empty() {
        return wrong("entries: found none, allowed is at least one".to_owned());
    }
    if descriptor.entries.len() > ENTRIES_MAX {
        return wrong(format!("entries: found {}, allowed are {ENTRIES_MAX}", descriptor.entries.len()));
    }
    if descriptor.limit.is_some() {
        return wrong("limit: overrides are not supported; change the limit with `earmark apply`".to_owned());
    }
    if descriptor.is_negative_hits {
        let what = "is_negative_hits: found negative hits, allowed are positive; hold a lease and settle its usage";
        return wrong(what.to_owned());
    }
    match descriptor.hits_addend.map(u32::try_from) {
        None => Ok(None),
        Some(Ok(hits)) => Ok(Some(hits)),
        Some(Err(_)) => {
            let found = descriptor.hits_addend.unwrap_or_default();
            wrong(format!("hits_addend: found {found}, allowed are 0 to {}", u32::MAX))
        }
    }
}

impl<'a> Entries<'a> {
    fn of(list: &'a [Entry]) -> Result<Entries<'a>, Mistake> {
        let mut entries = Entries::default();
        for Entry { key, value } in list {
            let wrong = |what: String| Mistake::Configuration(format!("entries: {what}"));
            let key = key.as_str();
            if list.iter().filter(|other| other.key == key).count() > 1 {
                return Err(wrong(format!("found {} twice, allowed is each key once", quoted(key))));
            }
            let place = match key {
                LEASE => &mut entries.lease,
                REQUEST_ID => &mut entries.request_id,
                RESPONSE => &mut entries.response,
                INPUT_TOKENS_MAX => &mut entries.tokens_max[0],
                OUTPUT_TOKENS_MAX => &mut entries.tokens_max[1],
                SETTLE if value == AT_END => {
                    entries.holds = true;
                    continue;
                }
                SETTLE => return Err(wrong(format!("{SETTLE}: found {}, allowed is {AT_END}", quoted(value)))),
                _ => match USAGE.iter().position(|name| *name == key) {
                    Some(part) => &mut entries.usage[part],
                    None if key.starts_with(PREFIX) => {
                        return Err(wrong(format!("found {}, allowed are {}", quoted(key), allowed())));
                    }
                    None => {
                        check_attribute_name(key).map_err(wrong)?;
                        entries.attributes.push((key.to_owned(), value.clone()));
                        continue;
                    }
                },
            };
            *place = Some(value);
        }
        Ok(entries)
    }

    /// The most tokens, if the descriptor states them.
    fn tokens_max(&self) -> Result<Option<(u32, u32)>, Mistake> {
        let number = |name: &str, text: Option<&str>| {
            let text =
                text.ok_or_else(|| Mistake::Value(format!("entries: {name} is required beside the other bound")))?;
            let wrong = || format!("entries: {name}: found {}, allowed are 0 to {}", quoted(text), u32::MAX);
            tokens(text).ok_or_else(|| Mistake::Value(wrong()))
        };
        match self.tokens_max {
            [None, None] => Ok(None),
            [input, output] => Ok(Some((number(INPUT_TOKENS_MAX, input)?, number(OUTPUT_TOKENS_MAX, output)?))),
        }
    }

    /// The usage of a stream that ended. One that lacks input or output is no usage.
    fn used(&self, stated: Option<u32>) -> HeldUsage {
        let [input, output, rest @ ..] = self.usage.map(|text| text.and_then(tokens));
        if let (Some(input_tokens), Some(output_tokens)) = (input, output) {
            let [cached, written, written_1h, reasoning] = rest.map(Option::unwrap_or_default);
            return HeldUsage::Known(HitsUsed::Tokens(Usage {
                input_tokens,
                output_tokens,
                cached_input_tokens: cached,
                cache_write_tokens: written,
                cache_write_1h_tokens: written_1h,
                reasoning_tokens: reasoning,
            }));
        }
        if let Some(hits) = stated {
            return HeldUsage::Known(HitsUsed::Count(hits));
        }
        let code = self.response.and_then(|text| text.strip_prefix(BY_UPSTREAM)).and_then(tokens);
        if code.is_some_and(|code| code >= 400) { HeldUsage::Nothing } else { HeldUsage::Unknown }
    }
}

/// A number as Envoy writes one.
fn tokens(text: &str) -> Option<u32> {
    text.parse().ok()
}

/// The entries that are no attributes, for messages.
fn allowed() -> String {
    let others = [SETTLE, LEASE, REQUEST_ID, RESPONSE, INPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX];
    others.into_iter().chain(USAGE).collect::<Vec<_>>().join(", ")
}
