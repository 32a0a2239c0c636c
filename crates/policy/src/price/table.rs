//! The prices of a policy, found by model and provider.

use super::Price;

/// Prices by name. An exact name beats a pattern, then the longest literal prefix wins, then a price with a provider.
#[derive(Clone, Debug, Default)]
pub(crate) struct PriceTable {
    /// Prices of exact names, sorted by name.
    exact: Vec<Price>,
    /// Prices of patterns, sorted by the text before the `*`.
    patterns: Vec<Price>,
    /// The lengths of those texts, the longest first.
    lengths: Vec<usize>,
}

impl PriceTable {
    pub(crate) fn new(prices: &[Price]) -> PriceTable {
        let (mut patterns, mut exact): (Vec<Price>, Vec<Price>) =
            prices.iter().cloned().partition(|price| price.model.ends_with('*'));
        exact.sort_by(|one, two| one.model.cmp(&two.model));
        patterns.sort_by(|one, two| literal(one).cmp(literal(two)));
        let mut lengths: Vec<usize> = patterns.iter().map(|price| literal(price).len()).collect();
        lengths.sort_unstable_by(|one, two| two.cmp(one));
        lengths.dedup();
        PriceTable { exact, patterns, lengths }
    }

    /// The price of a model.
    pub(crate) fn find(&self, model: &str, provider: Option<&str>) -> Option<&Price> {
        let by_name = among(&self.exact, |price| &price.model, model, provider);
        by_name.or_else(|| {
            self.lengths.iter().find_map(|length| among(&self.patterns, literal, model.get(..*length)?, provider))
        })
    }
}

/// The text before the `*` of a pattern.
fn literal(price: &Price) -> &str {
    price.model.trim_end_matches('*')
}

/// Of the prices with this name, the one with the provider, else the one without any.
fn among<'a>(
    prices: &'a [Price],
    name: impl Fn(&Price) -> &str,
    wanted: &str,
    provider: Option<&str>,
) -> Option<&'a Price> {
    let start = prices.partition_point(|price| name(price) < wanted);
    let named = || prices.iter().skip(start).take_while(|price| name(price) == wanted);
    let of_provider = named().find(|price| price.provider.is_some() && price.provider.as_deref() == provider);
    of_provider.or_else(|| named().find(|price| price.provider.is_none()))
}
