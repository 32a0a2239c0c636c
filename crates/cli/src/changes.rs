//! `earmark audit --changes`: the change log.

use std::fmt::Write as _;

use clap::Args;
use earmark_admission::ChangeCursor;
use earmark_client::http::encoded;
use earmark_core::{Actor, LimitKey};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;

/// Most changes on one page, as accepted by the server.
const PAGE_MAX: i64 = earmark_admission::PAGE_MAX as i64;

/// Which changes to list.
#[derive(Args, Debug)]
pub(crate) struct ChangesArgs {
    /// Only changes of the limit with exactly this key
    #[arg(long, requires = "changes")]
    key: Option<LimitKey>,
    /// Only changes by this actor, such as user:7 or client:billing
    #[arg(long, requires = "changes")]
    actor: Option<Actor>,
    /// Continue behind this position, with the same filters
    #[arg(long, value_name = "POSITION", default_value_t = ChangeCursor::default(), requires = "changes")]
    after: ChangeCursor,
    /// Changes per page
    #[arg(long, value_name = "N", default_value_t = 100, requires = "changes")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=PAGE_MAX))]
    page_size: u16,
}

impl ChangesArgs {
    /// The path and query of the page.
    fn path(&self) -> String {
        let mut path = format!("/v1/audit?after={}&page_size={}", self.after, self.page_size);
        for (name, value) in self.filters() {
            _ = write!(path, "&{name}={}", encoded(value));
        }
        path
    }

    /// The options that repeat the filters.
    fn options(&self) -> String {
        self.filters().map(|(name, value)| format!(" --{name} {}", output::shell_word(value))).collect()
    }

    fn filters(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let key = self.key.as_ref().map(|key| ("key", key.as_str()));
        key.into_iter().chain(self.actor.as_ref().map(|actor| ("actor", actor.as_str())))
    }
}

#[derive(Deserialize, Serialize)]
struct Page {
    entries: Vec<Entry>,
    next: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    place: String,
    at_unix_ms: u64,
    actor: String,
    namespace: String,
    vault: Option<String>,
    summary: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Prints one page of the change log.
pub(crate) fn show(client: &ClientArgs, args: &ChangesArgs) -> Result<Done, Failure> {
    let page: Page = request::get(client, &args.path())?;
    output::show(client.json, &page, |page| page.text(args))?;
    Ok(Done::Ok)
}

impl Page {
    fn text(&self, args: &ChangesArgs) -> String {
        let mut text = String::new();
        if !self.entries.is_empty() {
            let mut rows = vec![["PLACE", "AT", "BY", "WHERE", "WHAT"].map(str::to_owned)];
            rows.extend(self.entries.iter().map(|entry| {
                let place = match &entry.vault {
                    Some(vault) => format!("{}/{vault}", entry.namespace),
                    None => entry.namespace.clone(),
                };
                let (position, by) = (entry.place.clone(), entry.actor.clone());
                [position, output::date(entry.at_unix_ms), by, place, entry.what()]
            }));
            text += &output::table(&rows);
        }
        match &self.next {
            Some(next) => {
                if self.entries.is_empty() {
                    text += "no changes among those read so far\n";
                }
                let next = output::visible(next);
                text += &format!("next page: earmark audit --changes{} --after {next}\n", args.options());
            }
            None if self.entries.is_empty() => text += "no changes\n",
            None => {}
        }
        text
    }
}

impl Entry {
    /// The summary, and the definitions of limits before and after.
    fn what(&self) -> String {
        let none = Value::Null;
        let field = |name: &str| self.rest.get(name).unwrap_or(&none);
        let mut what = self.summary.clone();
        if field("kind") == "limit" {
            _ = write!(what, ": {}", change(field("old"), field("new")));
        }
        for limit in field("limits").as_array().into_iter().flatten() {
            let key = limit["key"].as_str().unwrap_or_default();
            _ = write!(what, "; {key}: {}", change(&limit["old"], &limit["new"]));
        }
        what
    }
}

/// The change of a definition: `capacity 60 -> 120`.
fn change(old: &Value, new: &Value) -> String {
    match (old.as_object(), new.as_object()) {
        (None, Some(new)) => format!("new, {}", fields(new)),
        (Some(old), None) => format!("was {}", fields(old)),
        (Some(old), Some(new)) => {
            let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
            let changed = names.filter(|name| old.get(*name) != new.get(*name));
            let changed: Vec<String> =
                changed.map(|name| format!("{name} {} -> {}", shown(old.get(name)), shown(new.get(name)))).collect();
            if changed.is_empty() { "unchanged".to_owned() } else { changed.join(", ") }
        }
        (None, None) => "unknown".to_owned(),
    }
}

/// The fields of a definition, without its key and empty texts.
fn fields(definition: &Map<String, Value>) -> String {
    let kind = definition.get("kind").map(|kind| shown(Some(kind)));
    let others = definition.iter().filter(|(name, value)| !matches!(name.as_str(), "key" | "kind") && **value != "");
    let others = others.map(|(name, value)| format!("{name} {}", shown(Some(value))));
    kind.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// A value for people.
fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "\"\"".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.as_u64().map_or_else(|| value.to_string(), |number| output::thousands(number.into())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn args() -> ChangesArgs {
        ChangesArgs { key: None, actor: None, after: ChangeCursor::default(), page_size: 100 }
    }

    fn entry(rest: &Value) -> Entry {
        Entry {
            place: "7-345.2".into(),
            at_unix_ms: 1_700_000_000_000,
            actor: "client:billing".into(),
            namespace: "default".into(),
            vault: Some("main".into()),
            summary: "issue 5 usd to acme".into(),
            rest: rest.as_object().unwrap().clone(),
        }
    }

    #[test]
    fn a_page_shows_actor_and_change_and_how_to_get_the_next_page() {
        let page = Page { entries: vec![entry(&json!({}))], next: Some("7-345.2".into()) };
        let text = page.text(&args());
        assert!(text.contains(" d ago)  client:billing"), "{text}");
        assert!(text.contains("default/main"), "{text}");
        assert!(text.ends_with("next page: earmark audit --changes --after 7-345.2\n"), "{text}");
        assert_eq!(Page { entries: vec![], next: None }.text(&args()), "no changes\n");
        let filtered = ChangesArgs { key: "a:rpm".parse().ok(), actor: "user:7".parse().ok(), ..args() };
        let text = Page { entries: vec![], next: Some("7".into()) }.text(&filtered);
        let next = "next page: earmark audit --changes --key a:rpm --actor user:7 --after 7\n";
        assert_eq!(text, format!("no changes among those read so far\n{next}"));
        assert_eq!(filtered.path(), "/v1/audit?after=0&page_size=100&key=a:rpm&actor=user:7");
    }

    #[test]
    fn the_change_of_a_limit_shows_what_differs() {
        let old = json!({"key": "rpm", "kind": "rolling", "capacity": 60, "window_seconds": 60, "unit": ""});
        let mut new = old.clone();
        (new["capacity"], new["unit"]) = (json!(1_200), json!("requests"));
        for (old, new, expected) in [
            (&old, &new, "capacity 60 -> 1,200, unit \"\" -> requests"),
            (&old, &old, "unchanged"),
            (&Value::Null, &old, "new, rolling, capacity 60, window_seconds 60"),
            (&old, &Value::Null, "was rolling, capacity 60, window_seconds 60"),
        ] {
            let limit = json!({"kind": "limit", "old": old, "new": new});
            assert_eq!(entry(&limit).what(), format!("issue 5 usd to acme: {expected}"));
            let transaction = json!({"kind": "transaction", "limits": [{"key": "rpm", "old": old, "new": new}]});
            assert_eq!(entry(&transaction).what(), format!("issue 5 usd to acme; rpm: {expected}"));
        }
    }
}
