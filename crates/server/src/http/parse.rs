//! Parses bodies in one pass.
//!
//! A parse error has no message: only a malformed body pays for a second pass by its [`Shape`], which explains it.

mod scan;

use std::fmt;
use std::marker::PhantomData;

use earmark_admission::{Amount, BATCH_MAX, CompleteRequest, ExtendRequest, ReserveRequest};
use earmark_core::{EXTENSIONS_MAX, JobId, LeaseId, LimitKey, NamespaceName, REQUIREMENTS_MAX, contains_api_key};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};

pub(super) use scan::{UsualCall, UsualEnd};

use super::labels::LabelList;
use super::shape::{Described, Field, Shape, body};

/// Initial capacity for amounts; most reserves have no more.
const PARTS_INITIAL: usize = 4;

body! {
    pub(super) struct ReserveBody {
        /// A ULID that the caller generates: one reserve attempt. Take a new one after a denial.
        lease_id: Text<LeaseId>,
        /// The job behind it, across attempts.
        job_id: Option<Text<JobId>>,
        /// Amounts to reserve: all, or none. No key twice; the order does not matter.
        requirements: Parts<Requirement, 1>,
    }
}

/// The body of a request about a lease, alone or in a batch.
pub(super) trait LeaseBody: Described + DeserializeOwned {
    type Request;

    /// # Errors
    /// The mistake, if a limit is named twice in one list, or a label is not allowed.
    fn into_request(self, namespace: &NamespaceName) -> Result<Self::Request, String>;
}

impl LeaseBody for ReserveBody {
    type Request = ReserveRequest;

    fn into_request(self, namespace: &NamespaceName) -> Result<ReserveRequest, String> {
        Ok(ReserveRequest {
            namespace: namespace.clone(),
            lease: self.lease_id.0,
            job: self.job_id.map(|job| job.0),
            call: None,
            by_gateway: false,
            requirements: seen_from(namespace, self.requirements.amounts, "requirements")?,
        })
    }
}

body! {
    pub(super) struct CompleteBody {
        /// The lease.
        lease_id: Text<LeaseId>,
        /// The job behind it, across attempts.
        job_id: Option<Text<JobId>>,
        /// Actual usage. No key twice. A rolling limit that is not named stays as reserved; of a credit limit the whole
        /// hold is charged.
        actuals: Parts<Actual, 0>,
        /// Labels of its settlements, for statements. Without credit they have no effect.
        labels: Option<LabelList>,
    }
}

impl LeaseBody for CompleteBody {
    type Request = CompleteRequest;

    fn into_request(self, namespace: &NamespaceName) -> Result<CompleteRequest, String> {
        Ok(CompleteRequest {
            namespace: namespace.clone(),
            lease: self.lease_id.0,
            job: self.job_id.map(|job| job.0),
            claim: earmark_core::LeaseClaim::default(),
            actuals: seen_from(namespace, self.actuals.amounts, "actuals")?,
            labels: LabelList::check(self.labels)?,
        })
    }
}

body! {
    pub(super) struct ExtendBody {
        /// The lease.
        lease_id: Text<LeaseId>,
        /// 1 for the first extension of the lease, then one more than the last. A retry repeats the number and the body.
        extension: ExtensionNumber,
        /// Amounts to take: all, or none. No key twice. A lease has at most 32 limits.
        add: Option<Parts<Requirement, 0>>,
        /// Usage that is certain, in total. No key twice. The largest report of a key counts. It is charged when the lease
        /// runs out, and a complete cannot report less.
        used: Option<Parts<Actual, 0>>,
        /// Whether to move the end of its concurrency and credit reservations to one timeout from now, at most 24 hours
        /// after the reserve; by default true.
        renew: Option<bool>,
    }
}

impl LeaseBody for ExtendBody {
    type Request = ExtendRequest;

    fn into_request(self, namespace: &NamespaceName) -> Result<ExtendRequest, String> {
        Ok(ExtendRequest {
            namespace: namespace.clone(),
            lease: self.lease_id.0,
            number: self.extension.0,
            add: seen_from(namespace, self.add.map(|add| add.amounts).unwrap_or_default(), "add")?,
            used: seen_from(namespace, self.used.map(|used| used.amounts).unwrap_or_default(), "used")?,
            claim: earmark_core::LeaseClaim::default(),
            renew: self.renew.unwrap_or(true),
        })
    }
}

/// The number of an extension.
pub(super) struct ExtensionNumber(u32);

impl ExtensionNumber {
    pub(super) const fn get(&self) -> u32 {
        self.0
    }
}

impl Described for ExtensionNumber {
    const SHAPE: Shape = Shape::Integer { min: 1, max: EXTENSIONS_MAX as u64 };
}

impl<'de> Deserialize<'de> for ExtensionNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ExtensionNumber, D::Error> {
        let Count(number) = Count::<1>::deserialize(deserializer)?;
        let number = u32::try_from(number).ok().filter(|number| *number <= EXTENSIONS_MAX);
        number.map(ExtensionNumber).ok_or_else(|| D::Error::custom("too large"))
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody<T> {
    pub(super) requests: Batch<T>,
}

impl<T: Described> BatchBody<T> {
    const FIELDS: &'static [Field] = &[Field {
        name: "requests",
        shape: Shape::List { item: &T::SHAPE, min: 1, max: BATCH_MAX },
        is_required: true,
        about: "Independent requests.",
    }];
}

impl<T: Described> Described for BatchBody<T> {
    const SHAPE: Shape = Shape::Object(Self::FIELDS);
}

body! {
    pub(super) struct Requirement {
        /// The limit.
        key: Text<LimitKey>,
        /// The amount to reserve.
        amount: Count<1>,
        /// The namespace of a shared limit; by default the caller's.
        namespace: Option<Text<NamespaceName>>,
    }
}

body! {
    pub(super) struct Actual {
        /// A limit of the lease; others are ignored.
        key: Text<LimitKey>,
        /// The amount used.
        actual_amount: Count<0>,
        /// The namespace of a shared limit; by default the caller's.
        namespace: Option<Text<NamespaceName>>,
    }
}

/// An element of a list of amounts.
pub(super) trait Part: Described {
    fn into_amount(self) -> Amount;
}

impl Part for Requirement {
    fn into_amount(self) -> Amount {
        Amount { key: named(self.namespace, self.key), amount: self.amount.0 }
    }
}

impl Part for Actual {
    fn into_amount(self) -> Amount {
        Amount { key: named(self.namespace, self.key), amount: self.actual_amount.0 }
    }
}

/// The limit that a part names.
fn named(namespace: Option<Text<NamespaceName>>, Text(key): Text<LimitKey>) -> LimitKey {
    match namespace {
        None => key,
        Some(Text(namespace)) => LimitKey::in_namespace(&namespace, &key),
    }
}

/// The amounts of a lease in the namespace `own`, which names its own limits without a namespace.
///
/// # Errors
/// When a limit is named twice, once with and once without the namespace.
fn seen_from(own: &NamespaceName, mut amounts: Vec<Amount>, field: &str) -> Result<Vec<Amount>, String> {
    // The parser found no key twice as it is written.
    if amounts.iter().all(|amount| amount.key.foreign().is_none()) {
        return Ok(amounts);
    }
    for index in 0..amounts.len() {
        let key = amounts[index].key.clone().seen_from(own);
        if let Some(first) = amounts[..index].iter().position(|earlier| earlier.key == key) {
            return Err(format!(
                "{field}[{index}].key: found {key:?} as in item {first}, allowed is each key once",
                key = key.as_str()
            ));
        }
        amounts[index].key = key;
    }
    Ok(amounts)
}

/// At least `MIN` amounts with different keys.
pub(super) struct Parts<P, const MIN: usize> {
    amounts: Vec<Amount>,
    part: PhantomData<P>,
}

impl<'de, P: Part + Deserialize<'de>, const MIN: usize> Deserialize<'de> for Parts<P, MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parts<P, MIN>, D::Error> {
        deserializer.deserialize_seq(PartsVisitor(PhantomData))
    }
}

impl<P: Part, const MIN: usize> Described for Parts<P, MIN> {
    const SHAPE: Shape = Shape::List { item: &P::SHAPE, min: MIN, max: REQUIREMENTS_MAX };
}

struct PartsVisitor<P, const MIN: usize>(PhantomData<P>);

impl<'de, P: Part + Deserialize<'de>, const MIN: usize> Visitor<'de> for PartsVisitor<P, MIN> {
    type Value = Parts<P, MIN>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MIN} to {REQUIREMENTS_MAX} amounts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parts<P, MIN>, A::Error> {
        let mut amounts: Vec<Amount> = Vec::with_capacity(PARTS_INITIAL);
        while let Some(Object(part)) = seq.next_element::<Object<P>>()? {
            let amount = part.into_amount();
            if amounts.len() == REQUIREMENTS_MAX || amounts.iter().any(|earlier| earlier.key == amount.key) {
                return Err(A::Error::custom("too many, or a key twice"));
            }
            amounts.push(amount);
        }
        if amounts.len() < MIN {
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

/// A value that must be a JSON object. A derived struct would also accept an array of its fields.
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

/// An unsigned 64-bit integer of at least `MIN`.
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

/// A name or id, checked while it is parsed.
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

/// A text of at most `BYTES_MAX` bytes.
pub(super) struct ShortText<const BYTES_MAX: usize>(pub(super) String);

impl<const BYTES_MAX: usize> Described for ShortText<BYTES_MAX> {
    const SHAPE: Shape = Shape::Text { bytes_max: BYTES_MAX };
}

impl<'de, const BYTES_MAX: usize> Deserialize<'de> for ShortText<BYTES_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ShortText<BYTES_MAX>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_allowed = text.len() <= BYTES_MAX && !contains_api_key(&text);
        if is_allowed { Ok(ShortText(text)) } else { Err(D::Error::custom("not allowed here")) }
    }
}
