//! Request heads that are refused whatever they ask for.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Uri};
use earmark_core::{LOOKS_LIKE_API_KEY, contains_api_key};

use crate::http::REQUEST_ID;

/// The mistake in a request head, if it has one: a repeated header of which two readers could take different ones, or an
/// API key that is no credential.
pub(crate) fn mistake(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if let Some(name) = [HOST, ORIGIN].iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        return Some(format!("{name}: given twice; give it once"));
    }
    let is_in = |name: &HeaderName| headers.get_all(name).iter().any(|id| id.to_str().is_ok_and(contains_api_key));
    let place = match () {
        () if is_in(&REQUEST_ID) => "x-request-id",
        () if contains_api_key(uri.path()) => "path",
        () if uri.query().is_some_and(contains_api_key) => "query",
        () => return None,
    };
    Some(format!("{place}: {LOOKS_LIKE_API_KEY}"))
}
