//! `/console`: the files of the console, embedded in the binary.
//!
//! They are the same for every caller and have no data, so they need no credentials. The console asks the API with the
//! key of its user.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::get;
use ring::digest::{SHA256, digest};
use serde::Serialize;
use tokio::time::Instant;

use super::reply::Reply;
use super::route::CONSOLE;
use super::serve::{Served, finish};
use crate::app::App;
use crate::body;

/// Path of the facts that the page needs before it signs in.
const SERVER: &str = "/console/server.json";
/// Path of the page. Its other files are below it.
const PAGE: &str = "/console";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Nothing from elsewhere, no inline code or style, no HTML from texts.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

macro_rules! files {
    ($($name:literal: $kind:ident;)*) => {
        [$(($name, $kind, include_bytes!(concat!("../../console/", $name)).as_slice())),*]
    };
}

/// The files with their names and types. The first one is the page.
static FILES: [(&str, &str, &[u8]); 21] = files! {
    "index.html": HTML;
    "style.css": CSS;
    "icon.svg": SVG;
    "app.js": SCRIPT;
    "api.js": SCRIPT;
    "live.js": SCRIPT;
    "dom.js": SCRIPT;
    "format.js": SCRIPT;
    "chart.js": SCRIPT;
    "parts.js": SCRIPT;
    "pause.js": SCRIPT;
    "statement.js": SCRIPT;
    "page_limits.js": SCRIPT;
    "page_limit.js": SCRIPT;
    "page_leases.js": SCRIPT;
    "page_accounts.js": SCRIPT;
    "page_denials.js": SCRIPT;
    "page_nodes.js": SCRIPT;
    "page_keys.js": SCRIPT;
    "page_changes.js": SCRIPT;
    "page_policy.js": SCRIPT;
};

/// A file, as it is served.
struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    /// A hash of its content.
    tag: String,
}

/// The files of the console.
pub(crate) struct Console(Vec<File>);

impl Console {
    pub(crate) fn new() -> Console {
        let file = |&(name, kind, bytes): &(&'static str, &'static str, &'static [u8])| {
            let hash = digest(&SHA256, bytes);
            let hex: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            File { name, kind, bytes, tag: format!("\"{hex}\"") }
        };
        Console(FILES.iter().map(file).collect())
    }

    /// The reply with the file at a path.
    fn reply(&self, path: &str, known: Option<&HeaderValue>) -> Reply {
        let name = match path.strip_prefix(PAGE).unwrap_or_default().trim_start_matches('/') {
            "" => FILES[0].0,
            name => name,
        };
        let Some(file) = self.0.iter().find(|file| file.name == name) else {
            return Reply::not_found("path not found; the console is at /console");
        };
        let is_known = known.is_some_and(|known| known.as_bytes() == file.tag.as_bytes());
        let (status, body) = match is_known {
            true => (StatusCode::NOT_MODIFIED, Bytes::new()),
            false => (StatusCode::OK, Bytes::from_static(file.bytes)),
        };
        let headers = [
            (ETAG.as_str(), file.tag.as_str()),
            ("cache-control", "no-cache"),
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("x-frame-options", "DENY"),
        ];
        let headers = headers.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        Reply { is_shared: true, headers, ..Reply::of(status, HeaderValue::from_static(file.kind), body) }
    }
}

/// Facts that the page needs before it signs in. A request without a key would tell as much.
#[derive(Serialize)]
struct ServerInfo {
    needs_key: bool,
    has_cluster: bool,
}

/// Adds the page and its files to the router.
pub(super) fn add_to(router: Router, app: &Arc<App>) -> Router {
    ["/console", "/console/", "/console/{*file}"].into_iter().fold(router, |router, path| {
        let app = Arc::clone(app);
        router.route(path, get(move |request: Request| serve(Arc::clone(&app), request)))
    })
}

async fn serve(app: Arc<App>, request: Request) -> Response {
    let start = Instant::now();
    let (parts, body) = request.into_parts();
    let is_read = body::discard(body, start + app.request_timeout).await;
    let known = parts.headers.get(IF_NONE_MATCH);
    let reply = match &app.console {
        Some(_) if parts.uri.path() == SERVER => Reply::ok(&ServerInfo {
            needs_key: app.auth.needs_credentials(&*app.backend),
            has_cluster: app.cluster.get().is_some(),
        }),
        Some(console) => console.reply(parts.uri.path(), known),
        None => Reply::not_found("path not found; see /openapi.json"),
    };
    let reply = if is_read { reply } else { reply.closing() };
    let id = app.request_ids.of(&parts.headers);
    finish(&app, Served { index: CONSOLE, parts: &parts, id, start, caller: None }, reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of all files together: what a first visit loads.
    const BYTES_MAX: usize = 300 << 10;

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = FILES.iter().map(|(_, _, bytes)| bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes}");
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut found: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let mut served: Vec<String> = FILES.iter().map(|(name, _, _)| (*name).to_owned()).collect();
        found.sort();
        served.sort();
        assert_eq!(found, served);
    }

    #[test]
    fn no_file_has_inline_code_or_style_or_names_another_host() {
        for (name, _, bytes) in FILES {
            let text = std::str::from_utf8(bytes).unwrap();
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "localStorage",
                "sessionStorage",
                "document.cookie",
                "indexedDB",
                "style=\"",
                "onclick=\"",
                "//cdn",
            ] {
                assert!(!text.contains(banned), "{name} has {banned}");
            }
            let elsewhere = text.replace("http://www.w3.org/", "");
            assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"), "{name} names another host");
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let console = Console::new();
        let first = console.reply("/console", None);
        assert_eq!(first.status, StatusCode::OK);
        let tag = first.headers.iter().find(|(name, _)| *name == "etag").map(|(_, value)| value.clone()).unwrap();
        let again = console.reply("/console/", Some(&HeaderValue::from_str(&tag).unwrap()));
        assert_eq!((again.status, again.body.len()), (StatusCode::NOT_MODIFIED, 0));
        assert_eq!(
            console.reply("/console/app.js", Some(&HeaderValue::from_str(&tag).unwrap())).status,
            StatusCode::OK
        );
        assert_eq!(console.reply("/console/../secret", None).status, StatusCode::NOT_FOUND);
    }
}
