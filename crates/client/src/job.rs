//! What a caller needs before a call, and what it used after.

use std::sync::Arc;

use earmark_core::{JobId, LimitKey, REQUIREMENTS_MAX};

/// What a call needs: how much of which limit, all of it or nothing.
///
/// It has no lease: every attempt gets its own, and callers never see one that they could use twice.
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

/// Why something is no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Too few or too many.
    #[error("requirements: found {found}, allowed are 1 to {REQUIREMENTS_MAX}")]
    Count {
        /// How many there were.
        found: usize,
    },
    /// Nothing is asked of a limit.
    #[error("requirements: found an amount of 0 for {key}, allowed are integers from 1")]
    Zero {
        /// The limit.
        key: LimitKey,
    },
    /// A limit is named twice.
    #[error("requirements: found {key} twice, allowed is each key once")]
    Twice {
        /// The limit.
        key: LimitKey,
    },
}

impl Job {
    /// A job that needs so much of each limit.
    ///
    /// # Errors
    /// When it names no limit, too many, one twice, or asks for nothing of one.
    pub fn new(requirements: impl IntoIterator<Item = (LimitKey, u64)>) -> Result<Job, JobError> {
        let requirements: Vec<(LimitKey, u64)> = requirements.into_iter().collect();
        if !(1..=REQUIREMENTS_MAX).contains(&requirements.len()) {
            return Err(JobError::Count { found: requirements.len() });
        }
        for (place, (key, amount)) in requirements.iter().enumerate() {
            if *amount == 0 {
                return Err(JobError::Zero { key: key.clone() });
            }
            if requirements[..place].iter().any(|(earlier, _)| earlier == key) {
                return Err(JobError::Twice { key: key.clone() });
            }
        }
        Ok(Job { requirements: requirements.into(), id: None })
    }

    /// The same with a name, which all its attempts have in logs and traces.
    #[must_use]
    pub fn named(self, id: JobId) -> Job {
        Job { id: Some(id), ..self }
    }

    /// How much of which limit.
    #[must_use]
    pub fn requirements(&self) -> &[(LimitKey, u64)] {
        &self.requirements
    }

    /// Its name.
    #[must_use]
    pub const fn id(&self) -> Option<&JobId> {
        self.id.as_ref()
    }
}

/// What a call really used.
///
/// A limit that is not named here counts as fully used, except that a slot of concurrency is free in any case. A use
/// of 0 is not the same: it gives everything back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actuals(Vec<(LimitKey, u64)>);

impl Actuals {
    /// Nothing is known.
    #[must_use]
    pub const fn unknown() -> Actuals {
        Actuals(Vec::new())
    }

    /// Nothing of a job was used, for no call was made.
    #[must_use]
    pub fn nothing_of(job: &Job) -> Actuals {
        Actuals(job.requirements.iter().map(|(key, _)| (key.clone(), 0)).collect())
    }

    /// The same, and so much of this limit; the latest word on a limit counts.
    #[must_use]
    pub fn used(mut self, key: LimitKey, amount: u64) -> Actuals {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = amount,
            None => self.0.push((key, amount)),
        }
        self
    }

    /// How much of which limit.
    #[must_use]
    pub fn amounts(&self) -> &[(LimitKey, u64)] {
        &self.0
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
