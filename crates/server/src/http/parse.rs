//! Bodies into requests, in one pass.
//!
//! What is refused here is refused without a word: the words come from a second pass, by the
//! [`Shape`](super::shape::Shape), which only bad bodies pay for.

use std::fmt;
use std::marker::PhantomData;

use earmark_admission::{Amount, BATCH_MAX, CompleteRequest, ReserveRequest};
use earmark_core::{JobId, LeaseId, LimitKey, NamespaceName, REQUIREMENTS_MAX};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Room for the requirements of most reserves.
const PARTS_USUAL: usize = 4;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReserveBody {
    lease_id: Text<LeaseId>,
    #[serde(default)]
    job_id: Option<Text<JobId>>,
    requirements: Parts<Requirement>,
}

impl ReserveBody {
    pub(super) fn into_request(self, namespace: &NamespaceName) -> ReserveRequest {
        ReserveRequest {
            namespace: namespace.clone(),
            lease: self.lease_id.0,
            job: self.job_id.map(|job| job.0),
            requirements: self.requirements.amounts,
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CompleteBody {
    lease_id: Text<LeaseId>,
    #[serde(default)]
    job_id: Option<Text<JobId>>,
    actuals: Parts<Actual>,
}

impl CompleteBody {
    pub(super) fn into_request(self, namespace: &NamespaceName) -> CompleteRequest {
        CompleteRequest {
            namespace: namespace.clone(),
            lease: self.lease_id.0,
            job: self.job_id.map(|job| job.0),
            actuals: self.actuals.amounts,
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody<T> {
    pub(super) requests: Batch<T>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    key: Text<LimitKey>,
    amount: Count<1>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Actual {
    key: Text<LimitKey>,
    actual_amount: Count<0>,
}

/// One element of a list that becomes amounts.
trait Part {
    /// The fewest in a list.
    const MIN: usize;
    fn into_amount(self) -> Amount;
}

impl Part for Requirement {
    const MIN: usize = 1;

    fn into_amount(self) -> Amount {
        Amount { key: self.key.0, amount: self.amount.0 }
    }
}

impl Part for Actual {
    const MIN: usize = 0;

    fn into_amount(self) -> Amount {
        Amount { key: self.key.0, amount: self.actual_amount.0 }
    }
}

/// Amounts, no key twice.
struct Parts<P> {
    amounts: Vec<Amount>,
    part: PhantomData<P>,
}

impl<'de, P: Part + Deserialize<'de>> Deserialize<'de> for Parts<P> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parts<P>, D::Error> {
        deserializer.deserialize_seq(PartsVisitor(PhantomData))
    }
}

struct PartsVisitor<P>(PhantomData<P>);

impl<'de, P: Part + Deserialize<'de>> Visitor<'de> for PartsVisitor<P> {
    type Value = Parts<P>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {REQUIREMENTS_MAX} amounts", P::MIN)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parts<P>, A::Error> {
        let mut amounts: Vec<Amount> = Vec::with_capacity(PARTS_USUAL);
        while let Some(Object(part)) = seq.next_element::<Object<P>>()? {
            let amount = part.into_amount();
            if amounts.len() == REQUIREMENTS_MAX || amounts.iter().any(|earlier| earlier.key == amount.key) {
                return Err(A::Error::custom("too many, or a key twice"));
            }
            amounts.push(amount);
        }
        if amounts.len() < P::MIN {
            return Err(A::Error::custom("too few"));
        }
        Ok(Parts { amounts, part: PhantomData })
    }
}

/// The items of a batch.
pub(super) struct Batch<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Batch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Batch<T>, D::Error> {
        deserializer.deserialize_seq(BatchVisitor(PhantomData))
    }
}

struct BatchVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BatchVisitor<T> {
    type Value = Batch<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 to {BATCH_MAX} requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Batch<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(Object(item)) = seq.next_element()? {
            if items.len() == BATCH_MAX {
                return Err(A::Error::custom("too many"));
            }
            items.push(item);
        }
        if items.is_empty() { Err(A::Error::custom("too few")) } else { Ok(Batch(items)) }
    }
}

/// What must be written as an object. A derived struct would take a list of its fields' values as well.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<T>, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// An integer of 64 bits without a sign, at least `MIN`. Not a text, not a fraction.
pub(super) struct Count<const MIN: u64>(pub(super) u64);

impl<'de, const MIN: u64> Deserialize<'de> for Count<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count<MIN>, D::Error> {
        deserializer.deserialize_u64(CountVisitor::<MIN>)
    }
}

struct CountVisitor<const MIN: u64>;

impl<const MIN: u64> Visitor<'_> for CountVisitor<MIN> {
    type Value = Count<MIN>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer from {MIN} to {}", u64::MAX)
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<Count<MIN>, E> {
        if count >= MIN { Ok(Count(count)) } else { Err(E::custom("too small")) }
    }
}

/// A name or an id, checked as it is read.
pub(super) struct Text<T>(pub(super) T);

impl<'de, T: std::str::FromStr> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<T>, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: std::str::FromStr> Visitor<'_> for TextVisitor<T> {
    type Value = Text<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
        text.parse().map(Text).map_err(|_| E::custom("not allowed here"))
    }
}
