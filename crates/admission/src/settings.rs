//! The settings of a Book, which all its processes share.

use std::fmt;

use earmark_core::{Command, Config, ConfigureOutcome, Outcome, Principal, Setting, SettingChange};

use crate::backend::BackendError;
use crate::book_host::{BookBackend, BookHost};
use crate::book_request::{Answered, Applied, BookRequest};

/// A setting that was changed, or that differs from the value that a process was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingEdit {
    /// The setting.
    pub setting: Setting,
    /// The value in force, or before the change.
    pub old: u64,
    /// The new or wanted value.
    pub new: u64,
}

impl fmt::Display for SettingEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.setting.name(), self.old, self.new)
    }
}

struct Configure(Vec<SettingChange>);

impl BookRequest for Configure {
    type Answer = ();
    type Error = BackendError;

    fn command(&self) -> Command<'_> {
        Command::Configure(&self.0)
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        let Outcome::Configure(outcome) = outcome else { return None };
        Some(match outcome {
            ConfigureOutcome::Configured => Ok(()),
            ConfigureOutcome::Invalid(SettingChange { setting, value }) => {
                let (name, allowed) = (setting.name(), setting.allowed());
                let (least, most) = (allowed.start(), allowed.end());
                Err(BackendError::Failed(format!("{name}: found {value}, allowed are {least} to {most}")))
            }
        })
    }
}

fn edits(config: &Config, changes: &[SettingChange]) -> Vec<SettingEdit> {
    let edit = |change: &SettingChange| SettingEdit {
        setting: change.setting,
        old: config.get(change.setting),
        new: change.value,
    };
    changes.iter().map(edit).filter(|edit| edit.old != edit.new).collect()
}

impl<H: BookHost> BookBackend<H> {
    /// The settings among `wanted` that differ from those in force, as this process knows them.
    #[must_use]
    pub fn setting_differences(&self, wanted: &[SettingChange]) -> Vec<SettingEdit> {
        self.0.host.with_book(|book| edits(book.config(), wanted))
    }

    /// Changes settings for all processes, unless they have these values. Returns what changed.
    ///
    /// # Errors
    /// When the Book cannot be read or written, or when a value is not allowed; then nothing changes.
    pub async fn configure(&self, by: Principal, changes: &[SettingChange]) -> Result<Vec<SettingEdit>, BackendError> {
        let edits = self.read(|book, _| edits(book.config(), changes)).await?;
        if !edits.is_empty() {
            let changes = edits.iter().map(|edit| SettingChange { setting: edit.setting, value: edit.new });
            self.0.submit_one(by, Configure(changes.collect())).await?;
        }
        Ok(edits)
    }
}
