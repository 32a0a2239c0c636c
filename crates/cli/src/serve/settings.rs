//! `--retention`, `--leases-max`, `--limits-max` and `--hint-*`: settings that all nodes of a cluster share.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use earmark_admission::{BookBackend, BookHost};
use earmark_core::{Actor, Principal, Setting, SettingChange};
use tokio::time::sleep;

use super::durable::RETRY_PAUSE;
use super::storage::Storage;
use crate::failure::Failure;
use crate::quantity;

const RETENTION_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;
/// Interval at which a node compares its flags with the settings in force: one minute, since it only warns.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// On a durable server a flag that is given changes the setting of the whole cluster, once, at the start of the node.
/// Without the flag the setting stays.
#[derive(Args, Debug, Default)]
pub(super) struct SettingsArgs {
    /// How long a completed, denied or expired lease is remembered, such as 900 or 15m [default: the setting of the
    /// cluster, at first 15m]
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds(RETENTION_SECONDS_MAX))]
    retention: Option<u32>,
    /// Remembered leases, including ended ones; more are refused as overloaded [default: the setting of the cluster, at
    /// first 67108864]
    #[arg(long, value_name = "N", value_parser = in_range(Setting::LeasesMax))]
    leases_max: Option<u64>,
    /// Live limits, defined and derived together; more are refused [default: the setting of the cluster, at first
    /// 10000000]
    #[arg(long, value_name = "N", value_parser = in_range(Setting::LimitsMax))]
    limits_max: Option<u64>,
    /// First retry hint of a denial by a concurrency limit, in milliseconds; doubles with each further denial [default:
    /// the setting of the cluster, at first 50]
    #[arg(long, value_name = "MS", value_parser = in_range(Setting::HintConcurrencyBaseMs))]
    hint_concurrency_base_ms: Option<u64>,
    /// Longest retry hint of a concurrency limit, in milliseconds [default: the setting of the cluster, at first 2000]
    #[arg(long, value_name = "MS", value_parser = in_range(Setting::HintConcurrencyMaxMs))]
    hint_concurrency_max_ms: Option<u64>,
    /// Shortest first retry hint of a denial by a rolling limit, in milliseconds; grows by half with each further denial
    /// [default: the setting of the cluster, at first 100]
    #[arg(long, value_name = "MS", value_parser = in_range(Setting::HintRollingBaseMs))]
    hint_rolling_base_ms: Option<u64>,
    /// Divisor of the window that gives the first retry hint of a rolling limit [default: the setting of the cluster, at
    /// first 10]
    #[arg(long, value_name = "N", value_parser = in_range(Setting::HintRollingWindowPart))]
    hint_rolling_window_part: Option<u64>,
    /// Longest retry hint of a rolling limit with unsettled leases, in milliseconds [default: the setting of the cluster,
    /// at first 5000]
    #[arg(long, value_name = "MS", value_parser = in_range(Setting::HintRollingMaxMs))]
    hint_rolling_max_ms: Option<u64>,
    /// Share of a retry hint that may be subtracted at random, so that callers do not return together [default: the
    /// setting of the cluster, at first 20]
    #[arg(long, value_name = "PERCENT", value_parser = in_range(Setting::HintJitterPercent))]
    hint_jitter_percent: Option<u64>,
    /// Retry hint while the capacity of a limit decreases, in milliseconds [default: the setting of the cluster, at first
    /// 10000]
    #[arg(long, value_name = "MS", value_parser = in_range(Setting::HintDecreasingMs))]
    hint_decreasing_ms: Option<u64>,
}

/// A clap value parser for the allowed values of a setting.
fn in_range(setting: Setting) -> impl Fn(&str) -> Result<u64, String> + Clone {
    let allowed: RangeInclusive<u64> = setting.allowed();
    move |text| {
        let found = text.parse().ok().filter(|value| allowed.contains(value));
        let (least, most) = (allowed.start(), allowed.end());
        found.ok_or_else(|| format!("found {text:?}, allowed are whole numbers from {least} to {most}"))
    }
}

impl SettingsArgs {
    /// The settings that were given.
    pub(super) fn changes(&self) -> Vec<SettingChange> {
        let retention_ms = self.retention.map(|seconds| u64::from(seconds) * 1_000);
        let given = |setting: &Setting| match setting {
            Setting::RetentionMs => retention_ms,
            Setting::LeasesMax => self.leases_max,
            Setting::HintConcurrencyBaseMs => self.hint_concurrency_base_ms,
            Setting::HintConcurrencyMaxMs => self.hint_concurrency_max_ms,
            Setting::HintRollingBaseMs => self.hint_rolling_base_ms,
            Setting::HintRollingWindowPart => self.hint_rolling_window_part,
            Setting::HintRollingMaxMs => self.hint_rolling_max_ms,
            Setting::HintJitterPercent => self.hint_jitter_percent,
            Setting::HintDecreasingMs => self.hint_decreasing_ms,
            Setting::LimitsMax => self.limits_max,
        };
        let change = |setting| Some(SettingChange { setting, value: given(&setting)? });
        Setting::ALL.into_iter().filter_map(change).collect()
    }

    /// Refuses settings that have no effect with this storage.
    pub(super) fn check(&self, storage: &Storage) -> Result<(), Failure> {
        if self.leases_max.is_some() && storage.limits().is_some() && storage.credit().is_some() {
            return Err(Failure::Usage(
                "--leases-max: with --ledger and --credits this server keeps no leases; leave it out".into(),
            ));
        }
        Ok(())
    }
}

/// Changes the settings of the cluster to the flags of this node, then warns whenever another node changes them again.
/// Retries until the cluster answers. Never ends.
pub(super) async fn configure<H: BookHost>(book: &BookBackend<H>, node: u64, wanted: &[SettingChange]) {
    if wanted.is_empty() {
        return std::future::pending().await;
    }
    let by = Actor::new(&format!("system:node-{node}")).map_or(Principal::System, Principal::Actor);
    loop {
        match book.configure(by.clone(), wanted).await {
            Ok(edits) => {
                edits.iter().for_each(|edit| tracing::info!(%edit, "changed a setting of the cluster"));
                break;
            }
            Err(why) => tracing::warn!(%why, "cannot change the settings of the cluster yet"),
        }
        sleep(RETRY_PAUSE).await;
    }
    let mut warned = Vec::new();
    loop {
        sleep(COMPARE_INTERVAL).await;
        let differences = book.setting_differences(wanted);
        if differences != warned {
            for edit in &differences {
                let (setting, in_force, flag) = (edit.setting.name(), edit.old, edit.new);
                tracing::warn!(
                    setting,
                    in_force,
                    flag,
                    "the setting of the cluster differs from the flag of this node"
                );
            }
        }
        warned = differences;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    #[cfg(feature = "tigerbeetle")]
    use crate::serve::storage::StorageArgs;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: SettingsArgs,
    }

    fn parse(line: &str) -> Result<Vec<SettingChange>, String> {
        let words = ["earmark"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(line.settings.changes())
    }

    #[test]
    fn only_the_settings_that_are_given_change() {
        assert_eq!(parse(""), Ok(vec![]));
        let changes = parse("--retention 15m --hint-jitter-percent 0").unwrap();
        let expected = [(Setting::RetentionMs, 900_000), (Setting::HintJitterPercent, 0)];
        assert_eq!(changes, expected.map(|(setting, value)| SettingChange { setting, value }));
    }

    #[test]
    fn every_setting_has_a_flag_of_its_name_that_names_the_allowed_values() {
        for setting in Setting::ALL.into_iter().filter(|setting| *setting != Setting::RetentionMs) {
            let flag = format!("--{}", setting.name().replace('_', "-"));
            let (least, most) = setting.allowed().into_inner();
            let change = SettingChange { setting, value: most };
            assert_eq!(parse(&format!("{flag} {most}")), Ok(vec![change]), "{flag}");
            let error = parse(&format!("{flag} {}", most + 1)).unwrap_err();
            assert!(error.contains(&format!("allowed are whole numbers from {least} to {most}")), "{error}");
        }
    }

    #[cfg(feature = "tigerbeetle")]
    #[test]
    fn a_server_that_keeps_no_leases_refuses_their_maximum() {
        let settings = SettingsArgs { leases_max: Some(5), ..SettingsArgs::default() };
        let (ledger, credits) = (Some("tigerbeetle://127.0.0.1:3000"), Some("sqlite:credit.db"));
        let storage = |ledger, credits| StorageArgs::of(ledger, credits).parse().unwrap();
        let error = settings.check(&storage(ledger, credits)).unwrap_err().to_string();
        assert!(error.contains("--leases-max: with --ledger and --credits this server keeps no leases"), "{error}");
        assert!(settings.check(&storage(ledger, None)).is_ok());
        assert!(settings.check(&storage(None, credits)).is_ok());
    }
}
