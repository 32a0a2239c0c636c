//! The census of a vault, for the audit.

use std::collections::BTreeMap;

use earmark_core::{AccountName, AssetName};

use crate::store::{AssetCensus, AssetSums, Census, UnevenAccount};

/// Uneven accounts listed.
const UNEVEN_MAX: usize = 10;

/// The sums of a vault at one moment.
#[derive(Default)]
pub(crate) struct Counted {
    assets: BTreeMap<AssetName, AssetSums>,
    accounts: BTreeMap<(AssetName, AccountName), (i128, i128)>,
    pub(crate) records: u64,
}

impl Counted {
    /// The totals of an asset.
    pub(crate) fn sums(&mut self, asset: AssetName) -> &mut AssetSums {
        self.assets.entry(asset).or_default()
    }

    /// Adds to the sum of an account's live postings, or of its entries.
    pub(crate) fn add(&mut self, is_live: bool, asset: AssetName, account: AccountName, amount: i128) {
        let (live, entered) = self.accounts.entry((asset, account)).or_default();
        let sum = if is_live { live } else { entered };
        *sum = sum.wrapping_add(amount);
    }

    pub(crate) fn census(mut self) -> Census {
        // An asset without a totals row was never issued, whatever postings and entries say.
        for (asset, _) in self.accounts.keys() {
            self.assets.entry(asset.clone()).or_default();
        }
        let of_asset = |asset: &AssetName| {
            let accounts = self.accounts.iter().filter(|((of, _), _)| of == asset);
            accounts.fold((0_i128, 0_i128), |(live, entered), (_, sums)| {
                (live.wrapping_add(sums.0), entered.wrapping_add(sums.1))
            })
        };
        let assets = self.assets.iter().map(|(asset, sums)| {
            let (live, entered) = of_asset(asset);
            AssetCensus { asset: asset.clone(), sums: *sums, live, entered }
        });
        let assets = assets.collect();
        let uneven = self.accounts.into_iter().filter(|(_, (live, entered))| live != entered);
        let uneven = uneven.take(UNEVEN_MAX).map(|((asset, account), (live, entered))| UnevenAccount {
            account,
            asset,
            live,
            entered,
        });
        Census { assets, uneven: uneven.collect(), records: self.records }
    }
}
