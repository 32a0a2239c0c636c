//! Answers as the domain has them. JSON is read into the messages of gRPC first, so there is one reading of both.

use std::str::FromStr;
use std::time::Duration;

use earmark_core::{BalanceInfo, LimitKey, LimitStatus, UnixMs, Usage};
use earmark_proto::convert;
use earmark_proto::v1;

use crate::ask::{
    Completed, Denial, LimitView, OperationOutcome, Receipt, ReserveAnswer, WriteCode, WriteRefusal,
};
use crate::failure::Failure;

/// Reads what one server answered.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a str);

impl Reader<'_> {
    pub(super) fn strange(self, what: impl ToString) -> Failure {
        Failure::Strange { server: self.0.to_owned(), what: what.to_string() }
    }

    pub(super) fn unavailable(self, message: impl ToString) -> Failure {
        Failure::Unavailable { server: self.0.to_owned(), message: message.to_string() }
    }

    pub(super) fn too_many(self, message: impl ToString) -> Failure {
        Failure::TooMany { server: self.0.to_owned(), message: message.to_string() }
    }

    pub(super) fn reserved(self, answer: v1::ReserveResponse) -> Result<ReserveAnswer, Failure> {
        let v1::ReserveResponse { allowed, retry_after_ms, reserved_at_unix_ms, error, .. } = &answer;
        let retry_after = Duration::from_millis(*retry_after_ms);
        if *allowed {
            return Ok(ReserveAnswer::Allowed { reserved_at: UnixMs::new(*reserved_at_unix_ms) });
        }
        let (code, subject) = error.split_once(':').unwrap_or((error, ""));
        let key = || LimitKey::from_str(subject).map_err(|error| self.strange(error));
        match code {
            "" => {
                let limited_by: Result<Vec<LimitKey>, _> =
                    answer.limited_by.iter().map(|key| key.parse()).collect();
                let limited_by = limited_by.map_err(|error| self.strange(error))?;
                Ok(match answer.never {
                    true => ReserveAnswer::Never { limited_by },
                    false => ReserveAnswer::Denied(Denial { retry_after, limited_by }),
                })
            }
            "limit_decreasing" => {
                Ok(ReserveAnswer::LimitDecreasing(Denial { retry_after, limited_by: vec![key()?] }))
            }
            "unknown_limit_key" => Ok(ReserveAnswer::UnknownLimitKey(key()?)),
            "insufficient_credit" => {
                Ok(ReserveAnswer::InsufficientCredit { key: key()?, message: answer.message })
            }
            "lease_expired" => Ok(ReserveAnswer::LeaseExpired),
            "invalid_request" => Ok(ReserveAnswer::Invalid { message: answer.message.unwrap_or_default() }),
            "overloaded" | "backend_error" => Err(self.unavailable(answer.message.unwrap_or_default())),
            other => Err(self.strange(format!("error: found {other:?}"))),
        }
    }

    pub(super) fn completed(self, answer: v1::CompleteResponse) -> Result<Completed, Failure> {
        let v1::CompleteResponse { ok, error, message, reconciled } = answer;
        match (ok, error.as_str()) {
            (true, _) => Ok(Completed { reconciled, message }),
            (false, "invalid_request") => Err(Failure::Invalid { message: message.unwrap_or_default() }),
            (false, "overloaded" | "backend_error") => Err(self.unavailable(message.unwrap_or_default())),
            (false, other) => Err(self.strange(format!("error: found {other:?}"))),
        }
    }

    /// The answers to a batch of `count`.
    pub(super) fn each<M, T>(
        self,
        answers: Vec<M>,
        count: usize,
        read: impl Fn(M) -> Result<T, Failure>,
    ) -> Result<Vec<Result<T, Failure>>, Failure> {
        match answers.len() == count {
            true => Ok(answers.into_iter().map(read).collect()),
            false => Err(self.strange(format!("results: found {} for {count} requests", answers.len()))),
        }
    }

    pub(super) fn written(self, answer: v1::WriteResponse) -> Result<Result<Receipt, WriteRefusal>, Failure> {
        use v1::write_response::Result as Kind;
        match answer.result {
            Some(Kind::Success(success)) => self.receipt(success).map(Ok),
            Some(Kind::Error(error)) => {
                let code = v1::WriteErrorCode::try_from(error.code).ok();
                let code = code.and_then(|code| WriteCode::named(code.as_str_name()));
                Ok(Err(WriteRefusal {
                    code: code.ok_or_else(|| self.strange(format!("code: found {}", error.code)))?,
                    message: error.message,
                    operation: error.operation,
                    last_committed_sequence: error.last_committed_sequence,
                }))
            }
            None => Err(self.strange("neither success nor error")),
        }
    }

    fn receipt(self, success: v1::WriteSuccess) -> Result<Receipt, Failure> {
        use v1::operation_result::Result as Kind;
        let result = |result: v1::OperationResult| match result.result {
            Some(Kind::Limit(v1::LimitResult { limit, revision, .. })) => {
                Ok(OperationOutcome::Limit { key: limit, revision })
            }
            Some(Kind::Vault(name)) => Ok(OperationOutcome::Vault(name)),
            Some(Kind::Account(name)) => Ok(OperationOutcome::Account(name)),
            Some(Kind::Entry(id)) => Ok(OperationOutcome::Entry(id)),
            None => Err(self.strange("results: found an empty one")),
        };
        Ok(Receipt {
            tx_id: success.tx_id,
            sequence: success.sequence,
            log_index: success.log_index,
            committed_at: UnixMs::new(success.committed_at_unix_ms),
            actor: success.actor,
            results: success.results.into_iter().map(result).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn limit(self, message: Option<v1::LimitInfo>) -> Result<LimitView, Failure> {
        let message = message.ok_or_else(|| self.strange("limit: found nothing"))?;
        let (definition, status, revision) =
            convert::info_in(message).map_err(|error| self.strange(error))?;
        Ok(LimitView { definition, status, revision })
    }

    pub(super) fn status(self, status: i32) -> Result<LimitStatus, Failure> {
        convert::status_in(status, None).map_err(|error| self.strange(error))
    }

    pub(super) fn usage(self, message: &v1::GetUsageResponse) -> Result<Usage, Failure> {
        convert::usage_in(message).map_err(|error| self.strange(error))
    }

    pub(super) fn balances(self, messages: &[v1::Balance]) -> Result<Vec<BalanceInfo>, Failure> {
        messages.iter().map(|one| convert::balance_in(one).map_err(|error| self.strange(error))).collect()
    }
}
