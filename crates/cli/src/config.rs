//! `earmark config`: checks the configuration of a server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{FromArgMatches as _, Subcommand};

use crate::failure::{Done, Failure};
use crate::output;
use crate::serve::config::{self, Settings};
use crate::serve::{ServeArgs, runtime};

pub(crate) const HELP: &str = "\
Examples:
  earmark config check /etc/earmark/earmark.toml";

const CHECK_HELP: &str = "\
It reads the file and all files that it names: limits, gateway, certificates, keys and the invitation. It connects to
nobody and writes nothing. Flags and variables are left out.

A field is a flag of `earmark serve` with _ for -: listen = \"127.0.0.1:7878\", in_memory = true, join = [\"a:7101\"].

Examples:
  earmark config check /etc/earmark/earmark.toml
  earmark config check earmark.toml && systemctl restart earmark";

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the file of `earmark serve --config`, without starting
    #[command(after_help = CHECK_HELP)]
    Check {
        /// The configuration, in TOML
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn run(command: &ConfigCommand) -> Result<Done, Failure> {
    let ConfigCommand::Check { file } = command;
    let count = check(file)?;
    let settings = if count == 1 { "setting" } else { "settings" };
    output::print(&format!("{}: ok ({count} {settings})\n", file.display()))?;
    Ok(Done::Ok)
}

/// Checks a file and returns the number of its settings.
fn check(file: &Path) -> Result<usize, Failure> {
    let settings = Settings::of_file(&config::command(), file)?;
    let count = settings.len();
    let mistake = |what: String| Failure::Usage(format!("{}: {}", file.display(), what.trim_end()));
    let words = [OsString::from("serve")].into_iter().chain(settings.words());
    let matches = config::command().try_get_matches_from(words).map_err(|error| mistake(error.to_string()))?;
    let mut args = ServeArgs::from_arg_matches(&matches).map_err(|error| mistake(error.to_string()))?;
    args.configured_by(settings);
    runtime()?.block_on(args.check_with_files()).map_err(|failure| mistake(failure.to_string()))?;
    Ok(count)
}
