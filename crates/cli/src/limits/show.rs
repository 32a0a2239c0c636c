//! Formats limits and their usage for `limits get` and `limits list`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::put::utc;
use crate::output::{self, seconds, table, thousands};

/// A limit as the server returns it. `--json` passes unknown fields on.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Limit {
    definition: Map<String, Value>,
    status: String,
    pending_decrease_to: Option<u64>,
    revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_until_unix_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pause_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
}

/// A template as the server returns it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Template {
    definition: Map<String, Value>,
    revision: u64,
    live: u64,
}

/// The usage of a limit.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Usage {
    capacity: u64,
    reserved: u64,
    available: u64,
    debt: u128,
    status: String,
    pending_decrease_to: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_until_unix_ms: Option<u64>,
}

impl Limit {
    /// A text field of the definition; empty if it is missing.
    fn text(&self, field: &str) -> &str {
        self.definition.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.definition.get(field)?.as_u64()
    }

    fn amount(&self, amount: u128) -> String {
        format!("{} {}", thousands(amount), self.text("unit")).trim_end().to_owned()
    }

    /// The capacity; for a credit limit the paying account.
    fn capacity(&self) -> String {
        self.number("capacity").map_or_else(|| self.payer(), |capacity| self.amount(capacity.into()))
    }

    /// The asset, account and vault of a credit limit.
    fn payer(&self) -> String {
        format!("{} of {} in {}", self.text("asset"), self.text("account"), self.text("vault"))
    }

    fn held_for(&self) -> String {
        if let Some(period) = self.period() {
            return period;
        }
        let time = self.number("window_seconds").or(self.number("timeout_seconds"));
        time.map_or("-".to_owned(), seconds)
    }

    /// The period of a calendar limit: `day at UTC+01:00`.
    fn period(&self) -> Option<String> {
        let period = self.definition.get("period")?.as_str()?;
        let offset = self.definition.get("utc_offset_minutes").and_then(Value::as_i64).unwrap_or(0);
        Some(format!("{period} at {}", utc(i16::try_from(offset).unwrap_or(0))))
    }

    /// Whether it only counts.
    fn is_shadow(&self) -> bool {
        self.definition.get("enforce").and_then(Value::as_bool) == Some(false)
    }

    fn status(&self) -> String {
        let status = match self.pending_decrease_to {
            Some(0) => format!("{}, to be deleted", self.status),
            Some(to) => format!("{} to {}", self.status, thousands(to.into())),
            None => self.status.clone(),
        };
        if self.paused_until_unix_ms.is_some() { format!("{status}, paused") } else { status }
    }
}

/// A table of templates.
pub(crate) fn templates(templates: &[Template]) -> String {
    if templates.is_empty() {
        return "no templates; create one with: earmark templates put (see --help)\n".to_owned();
    }
    let header = ["KEY", "KIND", "CAPACITY", "HELD FOR", "OVERAGE", "LIVE"].map(str::to_owned);
    let rows = templates.iter().map(|template| {
        let (definition, live) = (template.definition.clone(), template.live);
        let limit = Limit {
            definition,
            status: String::new(),
            pending_decrease_to: None,
            revision: 0,
            template: None,
            paused_until_unix_ms: None,
            pause_reason: None,
        };
        let [key, kind, overage] = ["key", "kind", "overage"].map(|field| limit.text(field).to_owned());
        [key, kind, limit.capacity(), limit.held_for(), overage, thousands(live.into())]
    });
    table(&[header].into_iter().chain(rows).collect::<Vec<_>>())
}

/// A table of limits.
pub(super) fn list(limits: &[Limit]) -> String {
    if limits.is_empty() {
        return "no limits; create one with: earmark limits put (see --help)\n".to_owned();
    }
    let header = ["KEY", "KIND", "CAPACITY", "HELD FOR", "OVERAGE", "STATUS"].map(str::to_owned);
    let rows = limits.iter().map(|limit| {
        let [key, kind, overage] = ["key", "kind", "overage"].map(|field| limit.text(field).to_owned());
        [key, kind, limit.capacity(), limit.held_for(), overage, limit.status()]
    });
    table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

/// One limit and its usage.
pub(super) fn one(limit: &Limit, usage: &Usage) -> String {
    let held_for = match limit.text("kind") {
        "rolling" => format!("{} after it was taken", limit.held_for()),
        "calendar" => format!("until the end of the {}", limit.held_for()),
        _ => format!("until its lease completes, at most {}", limit.held_for()),
    };
    let mut rows = vec![
        ("key:", limit.text("key").to_owned()),
        ("kind:", limit.text("kind").to_owned()),
        ("status:", format!("{}, revision {}", limit.status(), limit.revision)),
        ("capacity:", limit.amount(usage.capacity.into())),
        ("reserved:", limit.amount(usage.reserved.into())),
        ("available:", limit.amount(usage.available.into())),
        ("debt:", limit.amount(usage.debt)),
        ("held for:", held_for),
        ("overage:", limit.text("overage").to_owned()),
    ];
    if let Some(until) = limit.paused_until_unix_ms {
        let reason = limit.pause_reason.as_deref().map(|reason| format!(": {}", output::visible(reason)));
        rows.push(("paused:", format!("until {}{}", output::date(until), reason.unwrap_or_default())));
    }
    if limit.is_shadow() {
        rows.push(("enforce:", "false, it counts and never denies".to_owned()));
    }
    if limit.definition.get("shared").and_then(Value::as_bool) == Some(true) {
        rows.push(("shared:", "with other namespaces".to_owned()));
    }
    if !limit.text("asset").is_empty() {
        rows.push(("credit:", limit.payer()));
    }
    rows.extend(
        [
            ("paid to:", limit.text("revenue")),
            ("on timeout:", limit.text("on_timeout")),
            ("about:", limit.text("description")),
        ]
        .map(|(name, text)| (name, text.to_owned())),
    );
    rows.retain(|(_, text)| !text.is_empty());
    table(&rows.into_iter().map(|(name, text)| [name.to_owned(), text]).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RPM: &str = r#"{"definition":{"key":"a:rpm","kind":"rolling","capacity":60000,"window_seconds":60,
        "unit":"requests","description":"","overage":"debt"},
        "status":"active","pending_decrease_to":null,"revision":1}"#;
    const SLOTS: &str = r#"{"definition":{"key":"a:slots","kind":"concurrency","capacity":8,
        "timeout_seconds":600,"unit":"","description":"Calls","overage":"deny","zone":"x"},
        "status":"decreasing","pending_decrease_to":4,"revision":2}"#;

    const MONTH: &str = r#"{"definition":{"key":"a:tpm","kind":"calendar","capacity":8,"period":"month",
        "utc_offset_minutes":330,"unit":"","description":"","overage":"deny","shared":true,"enforce":false},
        "status":"active","pending_decrease_to":null,"revision":2}"#;
    const USD: &str = r#"{"definition":{"key":"a:usd","kind":"credit","timeout_seconds":60,"vault":"main",
        "account":"acme","asset":"usd","revenue":"shop","unit":"cents","description":"","overage":"debt"},
        "status":"active","pending_decrease_to":null,"revision":1}"#;

    fn limit(text: &str) -> Limit {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_list_is_a_table() {
        assert_eq!(
            list(&[limit(RPM), limit(SLOTS), limit(USD)]),
            "KEY      KIND         CAPACITY             HELD FOR  OVERAGE  STATUS\n\
             a:rpm    rolling      60,000 requests      1 min     debt     active\n\
             a:slots  concurrency  8                    10 min    deny     decreasing to 4\n\
             a:usd    credit       usd of acme in main  1 min     debt     active\n"
        );
        assert!(list(&[]).starts_with("no limits"));
    }

    #[test]
    fn one_limit_shows_its_usage() {
        let usage = r#"{"capacity":8,"reserved":5,"available":3,"debt":340282366920938463463374607431768211455,
            "status":"decreasing","pending_decrease_to":4}"#;
        let usage: Usage = serde_json::from_str(usage).unwrap();
        let text = one(&limit(MONTH), &usage);
        assert!(text.contains("held for:   until the end of the month at UTC+05:30\n"), "{text}");
        assert!(text.contains("enforce:    false, it counts and never denies\n"), "{text}");
        assert!(text.contains("shared:     with other namespaces\n"), "{text}");
        assert_eq!(
            one(&limit(SLOTS), &usage),
            "key:        a:slots\n\
             kind:       concurrency\n\
             status:     decreasing to 4, revision 2\n\
             capacity:   8\n\
             reserved:   5\n\
             available:  3\n\
             debt:       340,282,366,920,938,463,463,374,607,431,768,211,455\n\
             held for:   until its lease completes, at most 10 min\n\
             overage:    deny\n\
             about:      Calls\n"
        );
    }

    #[test]
    fn a_credit_limit_shows_whose_credit_it_is_and_who_is_paid() {
        let usage = r#"{"capacity":5000,"reserved":1000,"available":4000,"debt":0,"status":"active",
            "pending_decrease_to":null}"#;
        let text = one(&limit(USD), &serde_json::from_str(usage).unwrap());
        assert!(text.contains("available:  4,000 cents\n"), "{text}");
        assert!(text.ends_with("credit:     usd of acme in main\npaid to:    shop\n"), "{text}");
    }

    #[test]
    fn json_output_keeps_unknown_fields() {
        for text in [RPM, SLOTS, MONTH, USD] {
            let given: Value = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_value(limit(text)).unwrap(), given);
        }
    }
}
