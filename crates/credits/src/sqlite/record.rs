//! The entries of a saga, with what they did and what they add to the totals.

use serde_json::{Value as Json, json};

use super::change::Totals;
use super::order::order;
use super::script::{Script, values};
use crate::document;
use crate::model::{AccountChange, AssetKey, Plan, Posting, SagaToken, VaultKey};
use crate::sql::{entries_behind, signed};
use crate::store::AssetSums;

pub(super) fn ids(postings: &[Posting]) -> String {
    let ids = postings.iter().map(|posting| Json::from(posting.id.to_string()));
    Json::from(ids.collect::<Vec<_>>()).to_string()
}

/// What an entry did to one asset of an account, as a row; its number, or what tells it.
pub(super) fn changed(home: &VaultKey, number: u64, change: &AccountChange) -> Json {
    json!([
        home.namespace.as_str(),
        home.vault.as_str(),
        number,
        change.account.as_str(),
        change.asset.as_str(),
        change.amount.to_string(),
        order(change.amount),
        change.held.to_string(),
        order(change.held),
    ])
}

impl Script {
    /// The vaults have their new numbers already, so that an entry counts back from the last.
    pub(super) fn insert_entries(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        let (gate, rid, owner) = (token.gate.to_string(), token.rid.to_string(), token.owner.to_string());
        let (mut entries, mut changes) = (Vec::new(), Vec::new());
        for ((entry, behind), at) in plan.entries.iter().zip(entries_behind(plan)).zip(0_u64..) {
            let home = json!([entry.home.namespace.as_str(), entry.home.vault.as_str()]);
            entries.push(json!([
                home[0],
                home[1],
                behind,
                at,
                entry.at.get(),
                document::body_kind(&entry.body),
                entry.body.lease().map(|lease| lease.to_string()),
                document::body_to_json(&entry.body),
            ]));
            changes.extend(entry.changes.iter().map(|change| changed(&entry.home, behind, change)));
        }
        self.counted(
            place,
            "insert into entries (namespace, vault, number, gate, place, at_ms, kind, lease, body)
             select value->>0, value->>1, v.last_number - (value->>2), ?, value->>3, value->>4, value->>5,
                 value->>6, value->>7
             from json_each(?) join vaults v on v.namespace = value->>0 and v.vault = value->>1
             where exists (select 1 from sagas where gate = ? and reservation_id = ? and owner = ?
                 and phase = 'finalizing' and not is_recorded)",
            values![gate.clone(), Json::from(entries).to_string(), gate.clone(), rid.clone(), owner.clone()],
        );
        if changes.is_empty() {
            return;
        }
        self.push(
            "insert into changes (namespace, vault, number, account, asset, amount, amount_order, held, held_order)
             select value->>0, value->>1, v.last_number - (value->>2), value->>3, value->>4, value->>5,
                 value->>6, value->>7, value->>8
             from json_each(?) join vaults v on v.namespace = value->>0 and v.vault = value->>1
             where exists (select 1 from sagas where gate = ? and reservation_id = ? and owner = ?
                 and phase = 'finalizing' and not is_recorded)",
            values![Json::from(changes).to_string(), gate, rid, owner],
        );
    }

    /// SQLite cannot add numbers of 128 bits, so the sums were read inside the same transaction.
    pub(super) fn count_totals(&mut self, token: &SagaToken, plan: &Plan, totals: &Totals) {
        for change in &plan.totals {
            let key: &AssetKey = &change.asset;
            let before = totals.iter().find(|(asset, _)| asset == key).map(|(_, sums)| *sums);
            let AssetSums { issued, retired } = before.unwrap_or_default();
            self.push(
                "insert into assets (namespace, vault, asset, issued, retired) select ?, ?, ?, ?, ?
                 where exists (select 1 from sagas where gate = ? and reservation_id = ? and owner = ?
                     and phase = 'finalizing' and not is_recorded)
                 on conflict (namespace, vault, asset)
                 do update set issued = excluded.issued, retired = excluded.retired",
                values![
                    key.home.namespace.as_str(),
                    key.home.vault.as_str(),
                    key.asset.as_str(),
                    issued.saturating_add(change.issued).to_string(),
                    retired.saturating_add(change.retired).to_string(),
                    token.gate.to_string(),
                    token.rid.to_string(),
                    token.owner.to_string(),
                ],
            );
        }
    }

    /// Reads the sums of assets, in order.
    pub(super) fn read_totals(&mut self, assets: &[AssetKey]) {
        for (key, place) in assets.iter().zip(0_u64..) {
            self.push(
                "select ?, issued, retired from assets where namespace = ? and vault = ? and asset = ?",
                values![
                    signed(place),
                    key.home.namespace.as_str(),
                    key.home.vault.as_str(),
                    key.asset.as_str()
                ],
            );
        }
    }
}
