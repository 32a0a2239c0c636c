//! SIGHUP: reads the file of `--config` again.

use std::ffi::OsString;

use super::ServeArgs;
use super::callers;
use super::config::{self, Origin, Settings};
use crate::failure::Failure;
use crate::logging;

const LOG_LEVEL: &str = "log-level";
const LOG_LEVEL_DEFAULT: &str = "info";

/// Reads the file of `--config` on every SIGHUP. The log level changes at once. Other changes are named in the log,
/// because they need a restart.
pub(super) fn on_hangup(args: &ServeArgs) -> Result<(), Failure> {
    if args.configured.file.is_none() {
        return Ok(());
    }
    let words: Vec<OsString> = std::env::args_os().skip(2).collect();
    let started = Settings::read(&config::command(), &words, &config::variables()?)?;
    callers::on_hangup(move || reload(&started, &words).map_err(|failure| failure.to_string()))
}

fn reload(started: &Settings, words: &[OsString]) -> Result<(), Failure> {
    let found = Settings::read(&config::command(), words, &config::variables()?)?;
    let line = [OsString::from("serve")].into_iter().chain(found.words()).chain(words.iter().cloned());
    let conflict = |error: clap::Error| Failure::Usage(error.to_string());
    config::command().try_get_matches_from(line).map_err(conflict)?;
    if found.origin(LOG_LEVEL) != Some(&Origin::Flag) {
        let level = found.value(LOG_LEVEL).unwrap_or(LOG_LEVEL_DEFAULT).parse().map_err(Failure::Usage)?;
        logging::set_level(&level).map_err(Failure::Usage)?;
    }
    for flag in found.changed(started).iter().filter(|flag| *flag != LOG_LEVEL) {
        tracing::warn!(setting = flag.replace('-', "_"), "SIGHUP: this setting changes at the next start");
    }
    Ok(())
}
