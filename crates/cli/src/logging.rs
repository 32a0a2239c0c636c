//! The log of the server, on standard error.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

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
    let writer = fmt::layer().with_writer(io::stderr);
    let layer = match format {
        LogFormat::Human => writer.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => writer.json().flatten_event(true).boxed(),
    };
    _ = registry().with(layer.with_filter(level.0.clone())).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

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
