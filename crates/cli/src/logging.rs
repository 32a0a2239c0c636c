//! The log of the server, on standard error.

use std::io::{self, IsTerminal, Write};
use std::str::FromStr;
use std::sync::OnceLock;

use clap::ValueEnum;
use earmark_core::redact_api_keys;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, registry, reload};

/// Log target of the Raft library.
const OPENRAFT: &str = "openraft";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text
    Human,
    /// One JSON object per line
    Json,
}

/// The log filter: a level, or levels by target.
#[derive(Clone, Debug)]
pub(crate) struct LogLevel(Targets);

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<LogLevel, String> {
        // An empty RUST_LOG means the default.
        let text = if text.is_empty() { "info" } else { text };
        // `Targets` would take a misspelt level for a target name and log nothing.
        for directive in text.split(',') {
            let (target, level) = directive.split_once('=').unwrap_or(("all", directive));
            if target.is_empty() || !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
                return Err(format!(
                    "found {directive:?}, allowed are {}, or a list such as info,earmark_server=debug",
                    LEVELS.join(", ")
                ));
            }
        }
        let text = text.to_ascii_lowercase();
        let targets: Targets = text.parse().map_err(|error| format!("found {text:?}: {error}"))?;
        // openraft logs every message that it cannot deliver. It is off unless it is named; the node itself logs why it
        // stops.
        let is_named = text.contains(OPENRAFT);
        let quieter = |targets: Targets| targets.with_target(OPENRAFT, LevelFilter::OFF);
        Ok(LogLevel(if is_named { targets } else { quieter(targets) }))
    }
}

/// Installs the global logger, unless one is installed.
pub(crate) fn start(format: LogFormat, level: &LogLevel) {
    let writer = fmt::layer().with_writer(|| Redacting(io::stderr()));
    let layer = match format {
        LogFormat::Human => writer.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => writer.json().flatten_event(true).boxed(),
    };
    let (filter, handle) = reload::Layer::new(level.0.clone());
    if registry().with(layer.with_filter(filter)).try_init().is_ok() {
        // The first logger stays, and so does its handle.
        _ = FILTER.set(handle);
    }
}

/// The filter of the installed logger.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Changes the level of the installed logger.
pub(crate) fn set_level(level: &LogLevel) -> Result<(), String> {
    match FILTER.get() {
        Some(filter) => filter.reload(level.0.clone()).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// Removes API keys from log lines, also those of libraries. The subscriber writes each line in one call.
struct Redacting<W>(W);

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line).map(|()| line.len())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(redact_api_keys(&text).as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library that logs a request whole would log the key in it.
    #[test]
    fn a_log_line_of_any_target_contains_no_key() {
        let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let to = std::sync::Arc::clone(&lines);
        let layer = fmt::layer().with_writer(move || Redacting(Shared(std::sync::Arc::clone(&to))));
        let key = "emk_4m8qk2v7d1xz_0123456789";
        tracing::subscriber::with_default(registry().with(layer), || {
            tracing::info!(target: "h2", path = %format!("/v1/{key}"), "{key}");
            tracing::error!(encoded = %key.replace('_', "%5F"));
        });
        let logged = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
        assert_eq!(logged.matches("emk_***").count(), 3, "{logged}");
        assert!(!logged.contains("4m8qk2v7d1xz"), "{logged}");
    }

    #[test]
    fn levels_are_read_for_all_and_by_part() {
        for (text, target, expected) in [
            ("", "any", LevelFilter::INFO),
            ("WARN", "any", LevelFilter::WARN),
            ("off", "any", LevelFilter::OFF),
            ("warn,earmark_server=debug", "earmark_server::http", LevelFilter::DEBUG),
            ("warn,earmark_server=debug", "hyper", LevelFilter::WARN),
            ("debug", "openraft::core", LevelFilter::OFF),
            ("info,openraft=debug", "openraft::core", LevelFilter::DEBUG),
        ] {
            let level: LogLevel = text.parse().unwrap();
            let enabled =
                |filter: LevelFilter| filter.into_level().is_none_or(|level_| level.0.would_enable(target, &level_));
            assert!(enabled(expected), "{text}");
            if let Some(more) = expected.into_level().and_then(next) {
                assert!(!level.0.would_enable(target, &more), "{text}");
            }
        }
    }

    fn next(level: tracing::Level) -> Option<tracing::Level> {
        use tracing::Level;
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        levels.into_iter().find(|other| *other > level)
    }

    #[test]
    fn a_misspelt_level_is_refused_with_what_is_allowed() {
        for text in ["loud", "inf", "info,", "earmark_server=loud", "=info", "info,loud"] {
            let error = text.parse::<LogLevel>().unwrap_err();
            assert!(error.contains("allowed are off, error, warn, info, debug, trace"), "{text}: {error}");
        }
    }
}
