//! Converts response messages to the types of this crate.

use std::time::Duration;

use earmark_core::{LimitKey, UnixMs};
use earmark_proto::convert::{self, Invalid};
use earmark_proto::v1;

use crate::answer::{
    Completed, Denial, ExtendAnswer, Extended, LimitView, OperationOutcome, Receipt, ReserveAnswer, WriteCode,
    WriteRefusal,
};
use crate::failure::Failure;

/// Converts the messages of the server with this name.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a str);

impl Reader<'_> {
    pub(crate) fn unexpected(self, what: impl ToString) -> Failure {
        Failure::Unexpected { server: self.0.to_owned(), what: what.to_string() }
    }

    pub(super) fn unavailable(self, message: impl ToString) -> Failure {
        Failure::Unavailable { server: self.0.to_owned(), message: message.to_string() }
    }

    pub(super) fn rate_limited(self, message: impl ToString) -> Failure {
        Failure::RateLimited { server: self.0.to_owned(), message: message.to_string() }
    }

    pub(crate) fn converted<T>(self, value: Result<T, Invalid>) -> Result<T, Failure> {
        value.map_err(|error| self.unexpected(error))
    }

    pub(crate) fn reserved(self, message: v1::ReserveResponse) -> Result<ReserveAnswer, Failure> {
        let v1::ReserveResponse { allowed, retry_after_ms, reserved_at_unix_ms, error, .. } = &message;
        let retry_after = Duration::from_millis(*retry_after_ms);
        let keys = |keys: &[String]| -> Result<Vec<LimitKey>, Failure> {
            let keys: Result<Vec<LimitKey>, _> = keys.iter().map(|key| LimitKey::parse_qualified(key)).collect();
            keys.map_err(|error| self.unexpected(error))
        };
        if *allowed {
            let (reserved_at, would_deny) = (UnixMs::new(*reserved_at_unix_ms), keys(&message.would_deny)?);
            return Ok(ReserveAnswer::Allowed { reserved_at, would_deny });
        }
        let (code, subject) = error.split_once(':').unwrap_or((error, ""));
        let key = || LimitKey::parse_qualified(subject).map_err(|error| self.unexpected(error));
        match code {
            "" | "exceeds_capacity" => {
                let limited_by = keys(&message.limited_by)?;
                Ok(match message.never {
                    true => ReserveAnswer::Never { limited_by },
                    false => ReserveAnswer::Denied(Denial { retry_after, limited_by }),
                })
            }
            "limit_decreasing" => Ok(ReserveAnswer::LimitDecreasing(Denial { retry_after, limited_by: vec![key()?] })),
            "limit_paused" => Ok(ReserveAnswer::LimitPaused(Denial { retry_after, limited_by: vec![key()?] })),
            "unknown_limit_key" => Ok(ReserveAnswer::UnknownLimitKey(key()?)),
            "insufficient_credit" => Ok(ReserveAnswer::InsufficientCredit { key: key()?, message: message.message }),
            "account_not_found" => Ok(ReserveAnswer::AccountNotFound(key()?)),
            "quota_exceeded" => {
                Ok(ReserveAnswer::QuotaExceeded { retry_after, message: message.message.unwrap_or_default() })
            }
            "lease_expired" => Ok(ReserveAnswer::LeaseExpired),
            "invalid_request" => Ok(ReserveAnswer::Invalid { message: message.message.unwrap_or_default() }),
            "overloaded" | "backend_error" => Err(self.unavailable(message.message.unwrap_or_default())),
            other => Err(self.unexpected(format!("error: found {other:?}"))),
        }
    }

    pub(crate) fn extended(self, message: v1::ExtendResponse) -> Result<ExtendAnswer, Failure> {
        let v1::ExtendResponse { allowed, retry_after_ms, error, message, limited_by, never, ends_at_unix_ms } =
            message;
        if allowed {
            let ends_at = Some(UnixMs::new(ends_at_unix_ms)).filter(|at| at.get() > 0);
            return Ok(ExtendAnswer::Extended(Extended { ends_at, message }));
        }
        let like =
            v1::ReserveResponse { retry_after_ms, error, message, limited_by, never, ..v1::ReserveResponse::default() };
        self.reserved(like).map(ExtendAnswer::Not)
    }

    pub(crate) fn completed(self, message: v1::CompleteResponse) -> Result<Completed, Failure> {
        let v1::CompleteResponse { ok, error, message, reconciled } = message;
        match (ok, error.as_str()) {
            (true, _) => Ok(Completed { reconciled, message }),
            (false, "invalid_request") => Err(Failure::Invalid { message: message.unwrap_or_default() }),
            (false, quota) if quota.starts_with("quota_exceeded:") => {
                Err(Failure::Invalid { message: message.unwrap_or_default() })
            }
            (false, "overloaded" | "backend_error") => Err(self.unavailable(message.unwrap_or_default())),
            (false, other) => Err(self.unexpected(format!("error: found {other:?}"))),
        }
    }

    pub(crate) fn written(self, message: v1::WriteResponse) -> Result<Result<Receipt, WriteRefusal>, Failure> {
        use v1::write_response::Result as Kind;
        match message.result {
            Some(Kind::Success(success)) => self.receipt(success).map(Ok),
            Some(Kind::Error(error)) => {
                let code = v1::WriteErrorCode::try_from(error.code).ok();
                let code = code.and_then(|code| WriteCode::named(code.as_str_name()));
                Ok(Err(WriteRefusal {
                    code: code.ok_or_else(|| self.unexpected(format!("code: found {}", error.code)))?,
                    message: error.message,
                    operation: error.operation,
                    last_committed_sequence: error.last_committed_sequence,
                }))
            }
            None => Err(self.unexpected("neither success nor error")),
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
            Some(Kind::ClientId(client)) => Ok(OperationOutcome::Client(client)),
            None => Err(self.unexpected("results: found an empty one")),
        };
        Ok(Receipt {
            tx_id: success.tx_id,
            sequence: Some(success.sequence).filter(|sequence| *sequence != 0),
            log_index: success.log_index,
            committed_at: UnixMs::new(success.committed_at_unix_ms),
            actor: success.actor,
            results: success.results.into_iter().map(result).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn limit(self, message: v1::LimitInfo) -> Result<LimitView, Failure> {
        let template = message.template.as_deref().map(LimitKey::pattern).transpose();
        let template = self.converted(template.map_err(|error| Invalid::name("template", &error)))?;
        let (definition, status, revision) = self.converted(convert::info_in(message))?;
        Ok(LimitView { definition, status, revision, template })
    }
}
