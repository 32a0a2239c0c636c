//! Request heads that are refused whatever they ask for.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};
use earmark_core::{LOOKS_LIKE_API_KEY, contains_api_key};

use crate::http::REQUEST_ID;

/// The mistake in a request head, if it has one: a repeated header of which two readers could take different ones, or an
/// API key that is no credential.
pub(crate) fn mistake(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let (mut hosts, mut origins, mut is_in_id) = (0_usize, 0_usize, false);
    // One pass costs less than three look-ups: few requests have more than five headers.
    for (name, value) in headers {
        match name {
            name if *name == HOST => hosts += 1,
            name if *name == ORIGIN => origins += 1,
            name if *name == REQUEST_ID => is_in_id |= value.to_str().is_ok_and(contains_api_key),
            _ => {}
        }
    }
    if let Some((name, _)) = [(HOST, hosts), (ORIGIN, origins)].iter().find(|(_, count)| *count > 1) {
        return Some(format!("{name}: given twice; give it once"));
    }
    let place = match () {
        () if is_in_id => "x-request-id",
        () if contains_api_key(uri.path()) => "path",
        () if uri.query().is_some_and(contains_api_key) => "query",
        () => return None,
    };
    Some(format!("{place}: {LOOKS_LIKE_API_KEY}"))
}
