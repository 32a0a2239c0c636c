//! Limit definitions, status and usage.

use earmark_core::{
    AccountName, AssetName, CreditTerms, Definition, HOLD_SECONDS_MAX, Kind, KindTag, LimitInfo, LimitKey, LimitStatus,
    LimitUsage, NameError, OnTimeout, Overage, Period, Template, UTC_OFFSET_MINUTES, UnixMs, Usage, UsageSort,
    VaultName,
};

use super::invalid::Invalid;
use super::{name, optional_name};
use crate::v1;

/// Validates a definition.
///
/// # Errors
/// The first invalid field: each field alone, then the combination required by the kind.
pub fn definition(message: v1::LimitDefinition) -> Result<Definition, Invalid> {
    let definition = with_names(message, LimitKey::new, AccountName::new)?;
    definition.validate()?;
    Ok(definition)
}

/// Validates a template: a definition whose key, and account for credit, may have placeholders.
///
/// # Errors
/// The first invalid field.
pub fn template(message: v1::LimitDefinition) -> Result<Template, Invalid> {
    let definition = with_names(message, LimitKey::pattern, AccountName::pattern)?;
    Ok(Template::new(definition)?)
}

/// A definition whose key and account are parsed by `key` and `account`.
fn with_names(
    message: v1::LimitDefinition,
    key: fn(&str) -> Result<LimitKey, NameError>,
    account: fn(&str) -> Result<AccountName, NameError>,
) -> Result<Definition, Invalid> {
    let key = key(&message.key).map_err(|error| Invalid::name("key", &error))?;
    let kind = v1::LimitKind::try_from(message.kind)
        .map_err(|_| not_among("kind", message.kind, "rolling, concurrency, calendar and credit"))?;
    let given = Given::of(&message, account)?;
    let overage = match v1::Overage::try_from(message.overage) {
        Ok(v1::Overage::Unspecified | v1::Overage::Debt) => Overage::Debt,
        Ok(v1::Overage::Deny) => Overage::Deny,
        Err(_) => return Err(not_among("overage", message.overage, "debt and deny")),
    };
    let (kind, capacity) = given.into_kind(kind)?;
    let v1::LimitDefinition { unit, description, shared, enforce, .. } = message;
    let (shared, enforce) = (shared.unwrap_or(false), enforce.unwrap_or(true));
    Invalid::unless_free_of_keys("unit", &unit)?;
    Invalid::unless_free_of_keys("description", &description)?;
    Ok(Definition { key, kind, capacity, unit, description, overage, shared, enforce })
}

pub(super) fn not_among(field: &str, found: i32, allowed: &str) -> Invalid {
    Invalid::new(field, format_args!("found {found}, allowed are {allowed}"))
}

/// The kind-specific fields, each valid on its own.
struct Given {
    capacity: Option<u64>,
    window_seconds: Option<u32>,
    timeout_seconds: Option<u32>,
    period: Option<Period>,
    utc_offset_minutes: Option<i16>,
    vault: Option<VaultName>,
    account: Option<AccountName>,
    asset: Option<AssetName>,
    revenue: Option<AccountName>,
    on_timeout: Option<OnTimeout>,
}

impl Given {
    fn of(
        message: &v1::LimitDefinition,
        account: fn(&str) -> Result<AccountName, NameError>,
    ) -> Result<Given, Invalid> {
        let account = message.account.as_deref().map(account).transpose();
        let seconds = |field: &str, found: Option<u32>| {
            found.map(|found| Invalid::unless_within(field, found, &(1..=HOLD_SECONDS_MAX))).transpose()
        };
        let capacity = message.capacity.map(|found| Invalid::unless_within("capacity", found, &(1..=u64::MAX)));
        Ok(Given {
            capacity: capacity.transpose()?,
            window_seconds: seconds("window_seconds", message.window_seconds)?,
            timeout_seconds: seconds("timeout_seconds", message.timeout_seconds)?,
            period: message.period.map(period).transpose()?,
            utc_offset_minutes: message.utc_offset_minutes.map(utc_offset_minutes).transpose()?,
            vault: optional_name("vault", message.vault.as_deref())?,
            account: account.map_err(|error| Invalid::name("account", &error))?,
            asset: optional_name("asset", message.asset.as_deref())?,
            revenue: optional_name("revenue", message.revenue.as_deref())?,
            on_timeout: message.on_timeout.map(on_timeout).transpose()?,
        })
    }

    /// The kind and capacity. Requires the fields of the kind and refuses others. Credit limits have capacity 0.
    fn into_kind(self, kind: v1::LimitKind) -> Result<(Kind, u64), Invalid> {
        match kind {
            v1::LimitKind::Unspecified => Err(Invalid::missing("kind")),
            v1::LimitKind::Rolling => {
                let timeout = ("timeout_seconds", shown(self.timeout_seconds.as_ref()));
                lacks("rolling", [timeout].into_iter().chain(self.terms()).chain(self.calendar()))?;
                let capacity = needs("rolling", "capacity", self.capacity)?;
                let window_seconds = needs("rolling", "window_seconds", self.window_seconds)?;
                Ok((Kind::Rolling { window_seconds }, capacity))
            }
            v1::LimitKind::Concurrency => {
                let window = ("window_seconds", shown(self.window_seconds.as_ref()));
                lacks("concurrency", [window].into_iter().chain(self.terms()).chain(self.calendar()))?;
                let capacity = needs("concurrency", "capacity", self.capacity)?;
                let timeout_seconds = needs("concurrency", "timeout_seconds", self.timeout_seconds)?;
                Ok((Kind::Concurrency { timeout_seconds }, capacity))
            }
            v1::LimitKind::Calendar => {
                let window = ("window_seconds", shown(self.window_seconds.as_ref()));
                let timeout = ("timeout_seconds", shown(self.timeout_seconds.as_ref()));
                lacks("calendar", [window, timeout].into_iter().chain(self.terms()))?;
                let capacity = needs("calendar", "capacity", self.capacity)?;
                let period = needs("calendar", "period", self.period)?;
                let utc_offset_minutes = self.utc_offset_minutes.unwrap_or(0);
                Ok((Kind::Calendar { period, utc_offset_minutes }, capacity))
            }
            v1::LimitKind::Credit => {
                let capacity = ("capacity", shown(self.capacity.as_ref()));
                let window = ("window_seconds", shown(self.window_seconds.as_ref()));
                lacks("credit", [capacity, window].into_iter().chain(self.calendar()))?;
                Ok((Kind::Credit(self.into_terms()?), 0))
            }
        }
    }

    fn into_terms(self) -> Result<CreditTerms, Invalid> {
        Ok(CreditTerms {
            timeout_seconds: needs("credit", "timeout_seconds", self.timeout_seconds)?,
            vault: needs("credit", "vault", self.vault)?,
            account: needs("credit", "account", self.account)?,
            asset: needs("credit", "asset", self.asset)?,
            revenue: self.revenue.map_or_else(|| name("revenue", AccountName::REVENUE), Ok)?,
            on_timeout: self.on_timeout.unwrap_or_default(),
        })
    }

    /// The calendar-only fields.
    fn calendar(&self) -> [(&'static str, Option<String>); 2] {
        [
            ("period", self.period.map(|period| format!("{:?}", period.as_str()))),
            ("utc_offset_minutes", shown(self.utc_offset_minutes.as_ref())),
        ]
    }

    /// The credit-only fields.
    fn terms(&self) -> [(&'static str, Option<String>); 5] {
        let quoted = |text: Option<&str>| text.map(|text| format!("{text:?}"));
        [
            ("vault", quoted(self.vault.as_ref().map(VaultName::as_str))),
            ("account", quoted(self.account.as_ref().map(AccountName::as_str))),
            ("asset", quoted(self.asset.as_ref().map(AssetName::as_str))),
            ("revenue", quoted(self.revenue.as_ref().map(AccountName::as_str))),
            ("on_timeout", quoted(self.on_timeout.map(OnTimeout::name))),
        ]
    }
}

fn on_timeout(found: i32) -> Result<OnTimeout, Invalid> {
    match v1::OnTimeout::try_from(found) {
        Ok(v1::OnTimeout::Unspecified | v1::OnTimeout::Release) => Ok(OnTimeout::Release),
        Ok(v1::OnTimeout::Charge) => Ok(OnTimeout::Charge),
        Err(_) => Err(not_among("on_timeout", found, "release and charge")),
    }
}

fn period(found: i32) -> Result<Period, Invalid> {
    match v1::Period::try_from(found) {
        Ok(v1::Period::Hour) => Ok(Period::Hour),
        Ok(v1::Period::Day) => Ok(Period::Day),
        Ok(v1::Period::Week) => Ok(Period::Week),
        Ok(v1::Period::Month) => Ok(Period::Month),
        Ok(v1::Period::Unspecified) | Err(_) => Err(not_among("period", found, "hour, day, week and month")),
    }
}

fn utc_offset_minutes(found: i32) -> Result<i16, Invalid> {
    i16::try_from(found).ok().filter(|minutes| UTC_OFFSET_MINUTES.contains(minutes)).ok_or_else(|| {
        Invalid::new("utc_offset_minutes", format_args!("found {found}, allowed are integers from -720 to 840"))
    })
}

fn shown<T: ToString>(found: Option<&T>) -> Option<String> {
    found.map(T::to_string)
}

fn lacks(kind: &str, fields: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Result<(), Invalid> {
    let mut given = fields.into_iter().filter_map(|(field, found)| Some((field, found?)));
    given.next().map_or(Ok(()), |(field, found)| {
        Err(Invalid::new(field, format_args!("found {found}, but a {kind} limit has none")))
    })
}

fn needs<T>(kind: &str, field: &str, found: Option<T>) -> Result<T, Invalid> {
    found.ok_or_else(|| Invalid::required_for(field, kind))
}

/// Encodes a definition with the fields of its kind.
#[must_use]
pub fn definition_of(definition: &Definition) -> v1::LimitDefinition {
    let Definition { key, kind, capacity, unit, description, overage, shared, enforce } = definition;
    let overage = match overage {
        Overage::Debt => v1::Overage::Debt,
        Overage::Deny => v1::Overage::Deny,
    };
    let mut message = v1::LimitDefinition {
        key: key.to_string(),
        capacity: Some(*capacity),
        unit: unit.clone(),
        description: description.clone(),
        overage: overage.into(),
        shared: shared.then_some(true),
        enforce: (!enforce).then_some(false),
        ..v1::LimitDefinition::default()
    };
    match kind {
        Kind::Rolling { window_seconds } => {
            message.set_kind(v1::LimitKind::Rolling);
            message.window_seconds = Some(*window_seconds);
        }
        Kind::Concurrency { timeout_seconds } => {
            message.set_kind(v1::LimitKind::Concurrency);
            message.timeout_seconds = Some(*timeout_seconds);
        }
        Kind::Calendar { period, utc_offset_minutes } => {
            message.set_kind(v1::LimitKind::Calendar);
            message.set_period(match period {
                Period::Hour => v1::Period::Hour,
                Period::Day => v1::Period::Day,
                Period::Week => v1::Period::Week,
                Period::Month => v1::Period::Month,
            });
            message.utc_offset_minutes = Some((*utc_offset_minutes).into());
        }
        Kind::Credit(CreditTerms { timeout_seconds, vault, account, asset, revenue, on_timeout }) => {
            message.set_kind(v1::LimitKind::Credit);
            message.capacity = None;
            message.timeout_seconds = Some(*timeout_seconds);
            message.vault = Some(vault.to_string());
            message.account = Some(account.to_string());
            message.asset = Some(asset.to_string());
            message.revenue = Some(revenue.to_string());
            if *on_timeout == OnTimeout::Charge {
                message.set_on_timeout(v1::OnTimeout::Charge);
            }
        }
    }
    message
}

/// Status of a limit.
#[must_use]
pub const fn status(status: LimitStatus) -> v1::LimitStatus {
    match status {
        LimitStatus::Active => v1::LimitStatus::Active,
        LimitStatus::Decreasing { .. } => v1::LimitStatus::Decreasing,
        LimitStatus::Deleted => v1::LimitStatus::Deleted,
    }
}

const fn pending_decrease_to(status: LimitStatus) -> Option<u64> {
    match status {
        LimitStatus::Decreasing { to } => Some(to),
        LimitStatus::Active | LimitStatus::Deleted => None,
    }
}

/// Encodes a limit.
#[must_use]
pub fn info(limit: &LimitInfo) -> v1::LimitInfo {
    v1::LimitInfo {
        definition: Some(definition_of(&Definition { capacity: limit.capacity, ..limit.definition.clone() })),
        status: status(limit.status).into(),
        pending_decrease_to: pending_decrease_to(limit.status),
        revision: limit.revision,
        template: limit.template.as_ref().map(ToString::to_string),
        paused_until_unix_ms: limit.pause.as_ref().map(|pause| pause.until.get()),
        pause_reason: limit.pause.as_ref().map(|pause| pause.reason.to_string()).filter(|text| !text.is_empty()),
    }
}

/// Encodes usage.
#[must_use]
pub fn usage(usage: &Usage) -> v1::GetUsageResponse {
    v1::GetUsageResponse {
        capacity: usage.capacity,
        reserved: usage.reserved,
        available: usage.available,
        debt: usage.debt.to_string(),
        status: status(usage.status).into(),
        pending_decrease_to: pending_decrease_to(usage.status),
        paused_until_unix_ms: usage.paused_until.map(UnixMs::get),
    }
}

/// Encodes a limit with its usage.
#[must_use]
pub fn limit_usage(limit: &LimitUsage) -> v1::LimitUsage {
    let LimitUsage { key, kind, usage } = limit;
    v1::LimitUsage {
        key: key.to_string(),
        kind: kind_of(*kind).into(),
        capacity: usage.capacity,
        reserved: usage.reserved,
        available: usage.available,
        debt: usage.debt.to_string(),
        status: status(usage.status).into(),
        paused_until_unix_ms: usage.paused_until.map(UnixMs::get),
    }
}

const fn kind_of(kind: KindTag) -> v1::LimitKind {
    match kind {
        KindTag::Rolling => v1::LimitKind::Rolling,
        KindTag::Concurrency => v1::LimitKind::Concurrency,
        KindTag::Credit => v1::LimitKind::Credit,
        KindTag::Calendar => v1::LimitKind::Calendar,
    }
}

/// Decodes the order of a list.
///
/// # Errors
/// When the order is unknown.
pub fn sort(sort: i32) -> Result<UsageSort, Invalid> {
    match v1::UsageSort::try_from(sort) {
        Ok(v1::UsageSort::Unspecified | v1::UsageSort::Key) => Ok(UsageSort::Key),
        Ok(v1::UsageSort::Fullness) => Ok(UsageSort::Fullness),
        Ok(v1::UsageSort::Debt) => Ok(UsageSort::Debt),
        Err(_) => Err(not_among("sort", sort, "key, fullness and debt")),
    }
}

/// Encodes the order of a list.
#[must_use]
pub const fn sort_of(sort: UsageSort) -> v1::UsageSort {
    match sort {
        UsageSort::Key => v1::UsageSort::Key,
        UsageSort::Fullness => v1::UsageSort::Fullness,
        UsageSort::Debt => v1::UsageSort::Debt,
    }
}
