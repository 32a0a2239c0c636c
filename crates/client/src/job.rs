//! The requirements of a call before it, and its actual usage after it.

use std::sync::Arc;

use earmark_core::{JobId, LimitKey, REQUIREMENTS_MAX, SettleLabels};

/// The requirements of a call: an amount of each limit, reserved all or none.
///
/// A job has no lease: every attempt gets its own, so that no caller can use one twice.
///
/// ```
/// use earmark_client::Job;
///
/// let job = Job::new([("gpt-4o:rpm".parse()?, 1), ("gpt-4o:tpm".parse()?, 6_000)])?;
/// assert_eq!(job.requirements().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    requirements: Arc<[(LimitKey, u64)]>,
    id: Option<JobId>,
}

/// Why requirements are not a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The number of requirements is out of range.
    #[error("requirements: found {found}, allowed are 1 to {REQUIREMENTS_MAX}")]
    Count {
        /// The number of requirements.
        found: usize,
    },
    /// An amount is 0.
    #[error("requirements: found an amount of 0 for {key}, allowed are integers from 1")]
    Zero {
        /// The limit.
        key: LimitKey,
    },
    /// A limit occurs twice.
    #[error("requirements: found {key} twice, allowed is each key once")]
    Twice {
        /// The limit.
        key: LimitKey,
    },
}

impl Job {
    /// A job with these amounts.
    ///
    /// # Errors
    /// When there are no limits or too many, one occurs twice, or an amount is 0.
    pub fn new(requirements: impl IntoIterator<Item = (LimitKey, u64)>) -> Result<Job, JobError> {
        let requirements: Vec<(LimitKey, u64)> = requirements.into_iter().collect();
        if !(1..=REQUIREMENTS_MAX).contains(&requirements.len()) {
            return Err(JobError::Count { found: requirements.len() });
        }
        for (index, (key, amount)) in requirements.iter().enumerate() {
            if *amount == 0 {
                return Err(JobError::Zero { key: key.clone() });
            }
            if requirements[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(JobError::Twice { key: key.clone() });
            }
        }
        Ok(Job { requirements: requirements.into(), id: None })
    }

    /// The same job with an id, which all its attempts carry in logs and traces.
    #[must_use]
    pub fn named(self, id: JobId) -> Job {
        Job { id: Some(id), ..self }
    }

    /// The same job with more amounts, which an extension took.
    pub(crate) fn grown(&self, add: &[(LimitKey, u64)]) -> Job {
        let mut requirements = self.requirements.to_vec();
        for (key, amount) in add {
            match requirements.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => *known = known.saturating_add(*amount),
                None => requirements.push((key.clone(), *amount)),
            }
        }
        Job { requirements: requirements.into(), id: self.id.clone() }
    }

    /// The amount of each limit.
    pub fn requirements(&self) -> &[(LimitKey, u64)] {
        &self.requirements
    }

    /// The id of the job.
    pub const fn id(&self) -> Option<&JobId> {
        self.id.as_ref()
    }
}

/// The actual usage of a call.
///
/// A limit that is missing here counts as fully used, except that a concurrency slot is always freed. An actual amount of
/// 0 is different: it frees everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actuals {
    amounts: Vec<(LimitKey, u64)>,
    labels: SettleLabels,
}

impl Actuals {
    /// The usage of a call that reported none.
    #[must_use]
    pub const fn unknown() -> Actuals {
        Actuals { amounts: Vec::new(), labels: SettleLabels::NONE }
    }

    /// The usage of a job whose call was never made: 0 for every limit.
    #[must_use]
    pub fn nothing_of(job: &Job) -> Actuals {
        let amounts = job.requirements.iter().map(|(key, _)| (key.clone(), 0)).collect();
        Actuals { amounts, labels: SettleLabels::NONE }
    }

    /// The same usage with this amount of this limit, which replaces an earlier one.
    #[must_use]
    pub fn used(mut self, key: LimitKey, amount: u64) -> Actuals {
        match self.amounts.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = amount,
            None => self.amounts.push((key, amount)),
        }
        self
    }

    /// The same usage with these labels, which statements group by. They replace earlier ones.
    ///
    /// ```
    /// use earmark_client::Actuals;
    /// use earmark_client::core::SettleLabels;
    ///
    /// let actuals = Actuals::unknown().labelled(SettleLabels::new([("model", "gpt-4o"), ("user", "u1")])?);
    /// # Ok::<(), earmark_client::core::LabelError>(())
    /// ```
    #[must_use]
    pub fn labelled(self, labels: SettleLabels) -> Actuals {
        Actuals { labels, ..self }
    }

    /// The amount of each limit.
    pub fn amounts(&self) -> &[(LimitKey, u64)] {
        &self.amounts
    }

    /// The labels of the settlements.
    pub const fn labels(&self) -> &SettleLabels {
        &self.labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> LimitKey {
        text.parse().unwrap()
    }

    #[test]
    fn a_job_names_each_limit_once_and_asks_something_of_each() {
        assert_eq!(Job::new([]), Err(JobError::Count { found: 0 }));
        assert_eq!(Job::new([(key("a"), 0)]), Err(JobError::Zero { key: key("a") }));
        assert_eq!(Job::new([(key("a"), 1), (key("a"), 2)]), Err(JobError::Twice { key: key("a") }));
        let many = (0..33).map(|number| (key(&format!("k{number}")), 1));
        assert_eq!(Job::new(many), Err(JobError::Count { found: 33 }));
    }

    #[test]
    fn a_use_of_nothing_is_not_an_unknown_use() {
        let job = Job::new([(key("a"), 5), (key("b"), 1)]).unwrap();
        assert_eq!(Actuals::nothing_of(&job).amounts(), [(key("a"), 0), (key("b"), 0)]);
        assert_eq!(Actuals::unknown().amounts(), []);
        assert_eq!(Actuals::unknown().used(key("a"), 4).used(key("a"), 0).amounts(), [(key("a"), 0)]);
    }
}
