//! `GET .../accounts/{account}/statement`: the sums of a period, as JSON or CSV.

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode};
use earmark_admission::{
    AssetStatement, Movements, Statement, StatementCursor, StatementError, StatementGroup, StatementQuery,
};
use earmark_core::{AccountName, UnixMs};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::reply::{Handled, Reply};
use super::route::{FAILED, NO_VAULT, OVERLOADED, PROBLEM, Route, answer, get, json_or};
use super::serve::{Call, off_runtime};
use super::{shape, vaults};
use crate::app::App;
use crate::caller::{Access, QueueCost};
use crate::execute;

const CSV: HeaderValue = HeaderValue::from_static("text/csv; charset=utf-8");

pub(super) const GET: Route = Route {
    query: shape::STATEMENT_QUERY,
    queue_cost: QueueCost::PerItem,
    operation: "get_statement",
    about: "Sums the entries of an account in a period, and its spending by the value of a label, in pages of groups. With \
            `format=csv` the answer is `text/csv`: a row for each asset, and one for each value of the label; pages after the \
            first one have the latter only, and the header `link` names the next page.",
    answers: &[
        json_or("text/csv", 200, &["Statement"], "The statement."),
        answer(
            400,
            PROBLEM,
            "A name or `after` is malformed, `since` is after `until`, or the history in memory has dropped its oldest \
             entries.",
        ),
        NO_VAULT,
        FAILED,
        OVERLOADED,
    ],
    ..get("/v1/vaults/{vault}/accounts/{account}/statement", Access::Read, |app, call| Box::pin(statement(app, call)))
};

async fn statement(app: &App, call: Call) -> Handled {
    let account = vaults::path(&call)?;
    let time = |name: &str| call.query(name).and_then(|text| text.parse().ok()).map(UnixMs::new);
    let group_by = call.query("group_by").map(str::to_owned);
    let query = StatementQuery { since: time("since"), until: time("until"), group_by, ..StatementQuery::default() };
    let page_size = call.query("page_size").and_then(|text| text.parse().ok());
    let checked = query.check().and_then(|()| query.page(call.query("after"), page_size));
    let query = checked.map_err(|wrong| Reply::invalid(&wrong))?;
    // It reads the whole history of the account.
    let _permit = call.context.admit_audit(app).await?;
    let is_csv = call.query("format") == Some("csv");
    let (namespace, name) = (call.query("namespace").map(str::to_owned), account.account.clone());
    let read = earmark_admission::statement(&*app.backend, account, query.clone());
    let statement = execute::read(app, &call.context, read).await.map_err(|error| refused(&error))?;
    let build = move || match is_csv {
        true => csv(namespace.as_deref(), &query, &statement),
        false => Reply::ok(&StatementWire::of(&name, &query, &statement)),
    };
    Ok(off_runtime(build).await)
}

fn refused(error: &StatementError) -> Reply {
    match error {
        StatementError::Credit(error) => vaults::failed(error),
        other => Reply::invalid(&other.to_string()),
    }
}

#[derive(Serialize)]
struct StatementWire<'a> {
    account: &'a str,
    since: Option<u64>,
    until: Option<u64>,
    group_by: Option<&'a str>,
    assets: Vec<AssetWire<'a>>,
    next: Option<String>,
}

#[derive(Serialize)]
struct AssetWire<'a> {
    asset: &'a str,
    opening: String,
    issued: String,
    received: String,
    transferred_in: String,
    spent: String,
    transferred_out: String,
    expired: String,
    retired: String,
    closing: String,
    settlements: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<GroupWire<'a>>>,
}

#[derive(Serialize)]
struct GroupWire<'a> {
    value: Option<&'a str>,
    spent: String,
    settlements: u64,
}

impl<'a> StatementWire<'a> {
    fn of(account: &'a AccountName, query: &'a StatementQuery, statement: &'a Statement) -> StatementWire<'a> {
        let is_grouped = query.group_by.is_some();
        let group = |group: &'a StatementGroup| GroupWire {
            value: group.value.as_deref(),
            spent: group.spent.to_string(),
            settlements: group.settlements,
        };
        let asset = |found: &'a AssetStatement| {
            let [opening, issued, received, transferred_in, spent, transferred_out, expired, retired, closing] =
                amounts(found);
            AssetWire {
                asset: found.asset.as_str(),
                opening,
                issued,
                received,
                transferred_in,
                spent,
                transferred_out,
                expired,
                retired,
                closing,
                settlements: found.moved.settlements,
                groups: is_grouped.then(|| found.groups.iter().map(group).collect()),
            }
        };
        StatementWire {
            account: account.as_str(),
            since: query.since.map(UnixMs::get),
            until: query.until.map(UnixMs::get),
            group_by: query.group_by.as_deref(),
            assets: statement.assets.iter().map(asset).collect(),
            next: statement.next.as_ref().map(ToString::to_string),
        }
    }
}

/// The amounts of an asset, in the order of the columns.
fn amounts(found: &AssetStatement) -> [String; 9] {
    let Movements { issued, received, transferred_in, spent, transferred_out, expired, retired, .. } = found.moved;
    [found.opening, issued, received, transferred_in, spent, transferred_out, expired, retired, found.closing]
        .map(|amount| amount.to_string())
}

/// A row for each asset, whose `group_by` is empty, and one for each value of the label. All pages together, one behind
/// the other, are one file.
fn csv(namespace: Option<&str>, query: &StatementQuery, statement: &Statement) -> Reply {
    const HEAD: &str = "asset,group_by,value,opening,issued,received,transferred_in,spent,transferred_out,expired,retired,\
                        closing,settlements\r\n";
    let is_first = query.after.is_none();
    let mut text = if is_first { HEAD.to_owned() } else { String::new() };
    for found in &statement.assets {
        let (asset, name) = (&found.asset, query.group_by.as_deref().unwrap_or_default());
        if is_first {
            text += &format!("{asset},,,{},{}\r\n", amounts(found).join(","), found.moved.settlements);
        }
        for StatementGroup { value, spent, settlements } in &found.groups {
            let value = quoted(value.as_deref().unwrap_or_default());
            text += &format!("{asset},{name},{value},,,,,{spent},,,,,{settlements}\r\n");
        }
    }
    let link = statement.next.as_ref().map(|next| ("link", next_page(namespace, query, next)));
    Reply { headers: link.into_iter().collect(), ..Reply::of(StatusCode::OK, CSV, Bytes::from(text)) }
}

/// The header `link` with the query of the next page. Of its values only that of the namespace may need an escape.
fn next_page(namespace: Option<&str>, query: &StatementQuery, next: &StatementCursor) -> String {
    let namespace = namespace.map(|name| format!("&namespace={}", utf8_percent_encode(name, NON_ALPHANUMERIC)));
    let time = |name: &str, time: Option<UnixMs>| time.map(|time| format!("&{name}={}", time.get()));
    let group_by = query.group_by.as_ref().map(|name| format!("&group_by={name}"));
    let named = [namespace, time("since", query.since), time("until", query.until), group_by];
    let named: String = named.into_iter().flatten().collect();
    format!("<?format=csv{named}&page_size={}&after={next}>; rel=\"next\"", query.page_size)
}

/// A field, in quotes if it has a character with a meaning.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
