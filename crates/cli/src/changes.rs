//! `earmark audit --changes`: the change log.

use earmark_admission::ChangeCursor;
use serde::{Deserialize, Serialize};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;

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
    rest: serde_json::Map<String, serde_json::Value>,
}

/// Prints one page of the change log, starting after `after`.
pub(crate) fn show(args: &ClientArgs, after: ChangeCursor, page_size: u16) -> Result<Done, Failure> {
    let page: Page = request::get(args, &format!("/v1/audit?after={after}&page_size={page_size}"))?;
    output::show(args.json, &page, Page::text)?;
    Ok(Done::Ok)
}

impl Page {
    fn text(&self) -> String {
        let mut text = String::new();
        if !self.entries.is_empty() {
            let mut rows = vec![["PLACE", "AT", "BY", "WHERE", "WHAT"].map(str::to_owned)];
            rows.extend(self.entries.iter().map(|entry| {
                let place = match &entry.vault {
                    Some(vault) => format!("{}/{vault}", entry.namespace),
                    None => entry.namespace.clone(),
                };
                let [position, by, what] = [&entry.place, &entry.actor, &entry.summary].map(String::clone);
                [position, output::date(entry.at_unix_ms), by, place, what]
            }));
            text += &output::table(&rows);
        }
        match &self.next {
            Some(next) => {
                let next = output::visible(next);
                text += &format!("next page: earmark audit --changes --after {next}\n");
            }
            None if self.entries.is_empty() => text += "no changes\n",
            None => {}
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_shows_actor_and_change_and_how_to_get_the_next_page() {
        let entry = Entry {
            place: "7-345.2".into(),
            at_unix_ms: 1_700_000_000_000,
            actor: "client:billing".into(),
            namespace: "default".into(),
            vault: Some("main".into()),
            summary: "issue 5 usd to acme".into(),
            rest: serde_json::Map::new(),
        };
        let text = Page { entries: vec![entry], next: Some("7-345.2".into()) }.text();
        assert!(text.contains(" d ago)  client:billing"), "{text}");
        assert!(text.contains("default/main"), "{text}");
        assert!(text.ends_with("next page: earmark audit --changes --after 7-345.2\n"), "{text}");
        assert_eq!(Page { entries: vec![], next: None }.text(), "no changes\n");
    }
}
