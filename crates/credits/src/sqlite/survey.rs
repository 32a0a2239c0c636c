//! Sums, and what a plan is made from.

use earmark_core::{AccountName, AssetName, UnixMs};
use serde_json::{Value as Json, json};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::error::refused;
use super::read::{get, rows};
use super::script::{Script, values};
use crate::document;
use crate::model::{AccountKey, LivePosting, VaultKey};
use crate::sql::census::Counted;
use crate::sql::{AccountRow, count as number, limit, parse, signed};
use crate::store::{AssetSums, Census, Funds, PostingQuery, Spendable, StoreError, Survey, Surveyed};

impl Script {
    /// Asks about one purse; about none that there is without a question.
    fn posting_set(&mut self, place: i64, query: Option<&PostingQuery>) {
        let home = query.map(|query| &query.account.home);
        let of = || {
            values![
                place,
                home.map(|home| home.namespace.as_str()),
                home.map(|home| home.vault.as_str()),
                query.map(|query| query.account.account.as_str()),
                query.map(|query| query.asset.as_str()),
            ]
        };
        let ends = |max: fn(&PostingQuery) -> usize| {
            let [place, namespace, vault, account, asset] = of();
            values![place, namespace, vault, account, asset, limit(query.map_or(0, max))]
        };
        self.push(
            "select 'owed' as part, ? as place, id, amount, null as reservation_id from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order < 0
             and state = 'active' and lease is null",
            of(),
        );
        self.push(
            "select 'owed' as part, ? as place, id, amount, reservation_id from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order < 0
             and state = 'pending' and lease is null",
            of(),
        );
        self.push(
            "select 'large' as part, ? as place, id, amount, null as reservation_id from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order > 0
             and state = 'active' and lease is null order by amount_order desc, id desc limit ?",
            ends(|query| query.largest),
        );
        self.push(
            "select 'small' as part, ? as place, id, amount, null as reservation_id from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order > 0
             and state = 'active' and lease is null order by amount_order, id limit ?",
            ends(|query| query.smallest),
        );
        self.push(
            "select 'active' as part, ? as place, count(*) as found from (
                 select 1 from postings where namespace = ? and vault = ? and account = ? and asset = ?
                 and amount_order > 0 and state = 'active' and lease is null limit ?)",
            ends(|query| query.count_max),
        );
    }
}

pub(super) fn script(survey: &Survey) -> Script {
    let mut script = Script::default();
    if !survey.accounts.is_empty() {
        let accounts = survey
            .accounts
            .iter()
            .map(|key| json!([key.home.namespace.as_str(), key.home.vault.as_str(), key.account.as_str()]));
        script.push(
            "select 'account' as part, k.key as place, standing, overdraft, claimed_by, claim
             from json_each(?) k cross join accounts a
             on a.namespace = k.value->>0 and a.vault = k.value->>1 and a.account = k.value->>2",
            values![Json::from_iter(accounts).to_string()],
        );
    }
    // Surveys are shared, so that there could be as many shapes as numbers of purses, and each would be prepared anew.
    let shape =
        if survey.posting_sets.is_empty() { 0 } else { survey.posting_sets.len().next_power_of_two() };
    let posting_sets = survey.posting_sets.iter().map(Some).chain(std::iter::repeat(None));
    for (query, place) in posting_sets.take(shape).zip(0_i64..) {
        script.posting_set(place, query);
    }
    if let Some(key) = &survey.client {
        let home = &key.home;
        script.push(
            "select 'client' as part, 0 as place, last_sequence from clients
             where namespace = ? and vault = ? and client = ?",
            values![home.namespace.as_str(), home.vault.as_str(), key.client.as_str()],
        );
    }
    for (key, place) in survey.assets.iter().zip(0_i64..) {
        let home = &key.home;
        script.push(
            "select 'asset' as part, ? as place, issued, retired from assets
             where namespace = ? and vault = ? and asset = ?",
            values![place, home.namespace.as_str(), home.vault.as_str(), key.asset.as_str()],
        );
    }
    script
}

pub(super) async fn survey(
    connection: &mut SqliteConnection,
    survey: &Survey,
) -> Result<Surveyed, StoreError> {
    let mut found = Surveyed {
        accounts: vec![None; survey.accounts.len()],
        posting_sets: vec![crate::store::PostingSet::default(); survey.posting_sets.len()],
        last_sequence: None,
        assets: vec![None; survey.assets.len()],
    };
    for row in script(survey).run_at_once(connection).await.map_err(refused)? {
        sort(&mut found, &row)?;
    }
    Ok(found)
}

/// Puts a row where it belongs.
fn sort(found: &mut Surveyed, row: &SqliteRow) -> Result<(), StoreError> {
    let part: String = get(row, "part")?;
    let place = usize::try_from(get::<i64>(row, "place")?).unwrap_or(usize::MAX);
    match part.as_str() {
        "account" => {
            let account = AccountRow {
                standing: get(row, "standing")?,
                overdraft: get(row, "overdraft")?,
                claimed_by: get(row, "claimed_by")?,
                claim: get(row, "claim")?,
            };
            if let Some(slot) = found.accounts.get_mut(place) {
                *slot = Some(account.account()?);
            }
        }
        "client" => found.last_sequence = Some(number("last_sequence", get(row, "last_sequence")?)?),
        "asset" => {
            let (issued, retired): (String, String) = (get(row, "issued")?, get(row, "retired")?);
            if let Some(slot) = found.assets.get_mut(place) {
                let sums =
                    AssetSums { issued: parse("issued", &issued)?, retired: parse("retired", &retired)? };
                *slot = Some(sums);
            }
        }
        "active" => {
            if let Some(posting_set) = found.posting_sets.get_mut(place) {
                posting_set.active = usize::try_from(get::<i64>(row, "found")?).unwrap_or(0);
            }
        }
        which => {
            let (id, amount): (String, String) = (get(row, "id")?, get(row, "amount")?);
            let rid: Option<String> = get(row, "reservation_id")?;
            let reserved_by = rid.map(|rid| parse("reservation_id", &rid)).transpose()?;
            let posting =
                LivePosting { id: parse("id", &id)?, amount: parse("amount", &amount)?, reserved_by };
            if let Some(posting_set) = found.posting_sets.get_mut(place) {
                match which {
                    "large" => posting_set.large.push(posting),
                    "small" => posting_set.small.push(posting),
                    _ => posting_set.owed.push(posting),
                }
            }
        }
    }
    Ok(())
}

pub(super) fn funds_script(account: &AccountKey, now: UnixMs) -> Script {
    let home = &account.home;
    let mut script = Script::default();
    let of = || values![home.namespace.as_str(), home.vault.as_str(), account.account.as_str()];
    script.push(
        "select asset, amount, 'active' as part from postings
         where namespace = ? and vault = ? and account = ? and state = 'active' and lease is null",
        of(),
    );
    let [namespace, vault, name] = of();
    script.push(
        "select asset, amount, iif(ends_at_ms <= ?, 'due', 'held') as part from postings
         where namespace = ? and vault = ? and account = ? and lease is not null and state <> 'inactive'",
        values![signed(now.get()), namespace, vault, name],
    );
    // Few are pending at any time, so that it does not matter whose they are.
    script.push(
        "select asset, amount, 'pending' as part from postings indexed by postings_pending
         where state = 'pending' and lease is null and namespace = ? and vault = ? and account = ?",
        of(),
    );
    script
}

/// The sums are made here, for they may have more bits than SQLite counts with.
pub(super) async fn funds(
    connection: &mut SqliteConnection,
    account: &AccountKey,
    now: UnixMs,
) -> Result<Vec<Funds>, StoreError> {
    let mut sums: std::collections::BTreeMap<AssetName, Funds> = std::collections::BTreeMap::new();
    for row in funds_script(account, now).run_at_once(connection).await.map_err(refused)? {
        let (asset, amount): (String, String) = (get(&row, "asset")?, get(&row, "amount")?);
        let (asset, amount): (AssetName, i128) = (parse("asset", &asset)?, parse("amount", &amount)?);
        let funds =
            sums.entry(asset.clone()).or_insert(Funds { asset, active: 0, pending: 0, held: 0, due: 0 });
        let sum = match get::<String>(&row, "part")?.as_str() {
            "active" => &mut funds.active,
            "pending" => &mut funds.pending,
            "held" => &mut funds.held,
            _ => &mut funds.due,
        };
        *sum = sum.saturating_add(amount);
    }
    Ok(sums.into_values().collect())
}

pub(super) fn spendable_script(account: &AccountKey, asset: &AssetName, now: UnixMs) -> Script {
    let home = &account.home;
    let mut script = Script::default();
    let of =
        || values![home.namespace.as_str(), home.vault.as_str(), account.account.as_str(), asset.as_str()];
    script.push(
        "select amount, 'active' as part from postings
         where namespace = ? and vault = ? and account = ? and asset = ? and state = 'active' and lease is null",
        of(),
    );
    let [namespace, vault, name, asset] = of();
    script.push(
        "select amount, 'due' as part from postings
         where namespace = ? and vault = ? and account = ? and asset = ? and ends_at_ms <= ?
         and lease is not null and state <> 'inactive'",
        values![namespace, vault, name, asset, signed(now.get())],
    );
    script.push(
        "select amount, 'pending' as part from postings indexed by postings_pending
         where state = 'pending' and lease is null and namespace = ? and vault = ? and account = ? and asset = ?",
        of(),
    );
    script
}

pub(super) async fn spendable(
    connection: &mut SqliteConnection,
    account: &AccountKey,
    asset: &AssetName,
    now: UnixMs,
) -> Result<Spendable, StoreError> {
    let mut spendable = Spendable::default();
    for row in spendable_script(account, asset, now).run_at_once(connection).await.map_err(refused)? {
        let amount: i128 = parse("amount", &get::<String>(&row, "amount")?)?;
        let sum = match get::<String>(&row, "part")?.as_str() {
            "active" => &mut spendable.active,
            "pending" => &mut spendable.pending,
            _ => &mut spendable.due,
        };
        *sum = sum.saturating_add(amount);
    }
    Ok(spendable)
}

/// Sums by halves of 32 bits, which a billion rows cannot overflow, and one by one the rows whose order is not their amount.
const LIVE: &str = "
    select asset, account, sum(amount_order >> 32) as high, sum(amount_order & 4294967295) as low, null as amount
    from postings where namespace = ? and vault = ? and state <> 'inactive'
    and abs(amount_order) < 4611686018427387904 group by asset, account
    union all
    select asset, account, null, null, amount from postings
    where namespace = ? and vault = ? and state <> 'inactive'
    and abs(amount_order) >= 4611686018427387904";

const ENTERED: &str = "
    with parts (asset, account, exact, rough) as (
        select asset, account, amount, amount_order from changes where namespace = ? and vault = ?
        union all select asset, account, held, held_order from changes where namespace = ? and vault = ?)
    select asset, account, sum(rough >> 32) as high, sum(rough & 4294967295) as low, null as amount from parts
    where abs(rough) < 4611686018427387904 group by asset, account
    union all
    select asset, account, null, null, exact from parts
    where abs(rough) >= 4611686018427387904";

pub(super) async fn census(connection: &mut SqliteConnection, home: &VaultKey) -> Result<Census, StoreError> {
    let of = || values![home.namespace.as_str(), home.vault.as_str()];
    let twice = || {
        let [namespace, vault] = of();
        values![namespace.clone(), vault.clone(), namespace, vault]
    };
    let mut counted = Counted::default();
    // Inside a transaction all reads see the same moment.
    let mut transaction = connection.begin().await.map_err(refused)?;
    let sql = "select asset, issued, retired from assets where namespace = ? and vault = ?";
    for row in rows(&mut transaction, sql, of()).await? {
        let (asset, issued): (String, String) = (get(&row, "asset")?, get(&row, "issued")?);
        let retired: String = get(&row, "retired")?;
        let sums = AssetSums { issued: parse("issued", &issued)?, retired: parse("retired", &retired)? };
        counted.assets.insert(parse("asset", &asset)?, sums);
    }
    for row in rows(&mut transaction, LIVE, twice()).await? {
        let (asset, account, amount) = sum(&row)?;
        counted.add_live(asset, account, amount);
    }
    for row in rows(&mut transaction, ENTERED, twice()).await? {
        let (asset, account, amount) = sum(&row)?;
        counted.add_entered(asset, account, amount);
    }
    for row in rows(&mut transaction, "select plan from sagas", values![]).await? {
        let plan = document::plan_from_json(&get::<String>(&row, "plan")?).ok();
        // One that cannot be read may touch anything.
        let touches = plan.is_none_or(|plan| plan.accounts().iter().any(|account| account.home == *home));
        counted.records = counted.records.saturating_add(u64::from(touches));
    }
    transaction.rollback().await.map_err(refused)?;
    Ok(counted.census())
}

fn sum(row: &SqliteRow) -> Result<(AssetName, AccountName, i128), StoreError> {
    let (asset, account): (String, String) = (get(row, "asset")?, get(row, "account")?);
    let amount = match get::<Option<String>>(row, "amount")? {
        Some(exact) => parse("amount", &exact)?,
        None => {
            let (high, low): (i64, i64) = (get(row, "high")?, get(row, "low")?);
            (i128::from(high) << 32).wrapping_add(i128::from(low))
        }
    };
    Ok((parse("asset", &asset)?, parse("account", &account)?, amount))
}
