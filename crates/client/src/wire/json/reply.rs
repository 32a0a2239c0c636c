//! Answers: status and body.

use earmark_proto::v1;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::read::Reader;
use crate::ask::{Answer, Ask};
use crate::failure::Failure;
use crate::http::{HttpResponse, StatusCode, excerpt};

/// What came back for what was asked.
pub(crate) fn answer(reader: Reader<'_>, ask: &Ask, reply: &HttpResponse) -> Result<Answer, Failure> {
    if let Ask::Write(_) = ask
        && let Ok(answer) = serde_json::from_slice::<Written>(&reply.body)
    {
        return Ok(Answer::Write(reader.written(answer.into_message())?));
    }
    if reply.status != StatusCode::OK {
        return Err(refusal(reader, reply));
    }
    match ask {
        Ask::Reserve(items) => {
            let read = |one: Reserved| reader.reserved(one.into_message());
            let results = results(reader, reply, items.len())?;
            Ok(Answer::Reserve(reader.each(results, items.len(), read)?))
        }
        Ask::Complete(items) => {
            let read = |one: Completed| reader.completed(one.into_message());
            let results = results(reader, reply, items.len())?;
            Ok(Answer::Complete(reader.each(results, items.len(), read)?))
        }
        Ask::PutLimit(_) | Ask::DeleteLimit(_) => {
            let changed: Changed = parse(reader, reply)?;
            Ok(Answer::LimitStatus(reader.status(status(&changed.status))?))
        }
        Ask::Limit(_) => {
            let found: OneLimit = parse(reader, reply)?;
            Ok(Answer::Limits(vec![reader.limit(Some(found.limit.into_message()))?]))
        }
        Ask::Limits => {
            let found: AllLimits = parse(reader, reply)?;
            let limits = found.limits.into_iter().map(|limit| reader.limit(Some(limit.into_message())));
            Ok(Answer::Limits(limits.collect::<Result<_, _>>()?))
        }
        Ask::Usage(_) => Ok(Answer::Usage(reader.usage(&parse::<Usage>(reader, reply)?.into_message())?)),
        Ask::Write(_) => Err(strange(reader, reply, "neither success nor error")),
        Ask::ClientState { .. } => {
            Ok(Answer::ClientState(parse::<ClientState>(reader, reply)?.last_committed_sequence))
        }
        Ask::Balances { .. } => {
            let found: Balances = parse(reader, reply)?;
            let messages: Vec<v1::Balance> = found.balances.into_iter().map(Balance::into_message).collect();
            Ok(Answer::Balances(reader.balances(&messages)?))
        }
    }
}

fn parse<T: DeserializeOwned>(reader: Reader<'_>, reply: &HttpResponse) -> Result<T, Failure> {
    serde_json::from_slice(&reply.body).map_err(|error| strange(reader, reply, error))
}

/// The answers to one request, or to a batch.
fn results<T: DeserializeOwned>(
    reader: Reader<'_>,
    reply: &HttpResponse,
    count: usize,
) -> Result<Vec<T>, Failure> {
    #[derive(Deserialize)]
    struct Results<T> {
        results: Vec<T>,
    }
    match count {
        1 => Ok(vec![parse(reader, reply)?]),
        _ => Ok(parse::<Results<T>>(reader, reply)?.results),
    }
}

fn strange(reader: Reader<'_>, reply: &HttpResponse, what: impl std::fmt::Display) -> Failure {
    reader.strange(format!("{what}; status {}: {}", reply.status.as_u16(), excerpt(&reply.body)))
}

/// What an answer that is no success means.
fn refusal(reader: Reader<'_>, reply: &HttpResponse) -> Failure {
    #[derive(Deserialize)]
    struct Problem {
        error: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Problem { error, message }) = serde_json::from_slice::<Problem>(&reply.body) else {
        return strange(reader, reply, "no JSON that says what is wrong");
    };
    let message = if message.is_empty() { error } else { message };
    match reply.status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => Failure::Invalid { message },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::Unauthorized { message },
        StatusCode::TOO_MANY_REQUESTS => reader.too_many(message),
        StatusCode::NOT_FOUND => Failure::NotFound { message },
        // The body did not come in time, so nothing was done with it; it may the next time.
        StatusCode::REQUEST_TIMEOUT => reader.unavailable(message),
        status if status.is_server_error() => reader.unavailable(message),
        _ => strange(reader, reply, "an unknown status"),
    }
}

#[derive(Deserialize)]
struct Reserved {
    allowed: bool,
    retry_after_ms: u64,
    reserved_at_unix_ms: u64,
    error: String,
    message: Option<String>,
    #[serde(default)]
    limited_by: Vec<String>,
    #[serde(default)]
    never: bool,
}

impl Reserved {
    fn into_message(self) -> v1::ReserveResponse {
        let Reserved { allowed, retry_after_ms, reserved_at_unix_ms, error, message, limited_by, never } =
            self;
        v1::ReserveResponse {
            allowed,
            retry_after_ms,
            reserved_at_unix_ms,
            error,
            message,
            limited_by,
            never,
        }
    }
}

#[derive(Deserialize)]
struct Completed {
    ok: bool,
    error: String,
    message: Option<String>,
    reconciled: bool,
}

impl Completed {
    fn into_message(self) -> v1::CompleteResponse {
        let Completed { ok, error, message, reconciled } = self;
        v1::CompleteResponse { ok, error, message, reconciled }
    }
}

#[derive(Deserialize)]
struct Changed {
    status: String,
}

fn status(text: &str) -> i32 {
    match text {
        "active" => v1::LimitStatus::Active.into(),
        "decreasing" => v1::LimitStatus::Decreasing.into(),
        "deleted" => v1::LimitStatus::Deleted.into(),
        _ => v1::LimitStatus::Unspecified.into(),
    }
}

#[derive(Deserialize)]
struct OneLimit {
    limit: Limit,
}

#[derive(Deserialize)]
struct AllLimits {
    limits: Vec<Limit>,
}

#[derive(Deserialize)]
struct Limit {
    definition: Definition,
    status: String,
    pending_decrease_to: Option<u64>,
    revision: u64,
}

impl Limit {
    fn into_message(self) -> v1::LimitInfo {
        v1::LimitInfo {
            definition: Some(self.definition.into_message()),
            status: status(&self.status),
            pending_decrease_to: self.pending_decrease_to,
            revision: self.revision,
        }
    }
}

#[derive(Deserialize)]
struct Definition {
    key: String,
    kind: String,
    capacity: Option<u64>,
    window_seconds: Option<u32>,
    timeout_seconds: Option<u32>,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    description: String,
    overage: Option<String>,
    vault: Option<String>,
    account: Option<String>,
    asset: Option<String>,
    revenue: Option<String>,
}

impl Definition {
    fn into_message(self) -> v1::LimitDefinition {
        let kind = match self.kind.as_str() {
            "rolling" => v1::LimitKind::Rolling,
            "concurrency" => v1::LimitKind::Concurrency,
            "credit" => v1::LimitKind::Credit,
            _ => v1::LimitKind::Unspecified,
        };
        let overage = match self.overage.as_deref() {
            Some("deny") => v1::Overage::Deny,
            _ => v1::Overage::Debt,
        };
        v1::LimitDefinition {
            key: self.key,
            kind: kind.into(),
            capacity: self.capacity,
            window_seconds: self.window_seconds,
            timeout_seconds: self.timeout_seconds,
            unit: self.unit,
            description: self.description,
            overage: overage.into(),
            vault: self.vault,
            account: self.account,
            asset: self.asset,
            revenue: self.revenue,
        }
    }
}

#[derive(Deserialize)]
struct Usage {
    capacity: u64,
    reserved: u64,
    available: u64,
    debt: u128,
    status: String,
    pending_decrease_to: Option<u64>,
}

impl Usage {
    fn into_message(self) -> v1::GetUsageResponse {
        v1::GetUsageResponse {
            capacity: self.capacity,
            reserved: self.reserved,
            available: self.available,
            debt: self.debt.to_string(),
            status: status(&self.status),
            pending_decrease_to: self.pending_decrease_to,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Success(Success),
    Error(WriteError),
}

impl Written {
    fn into_message(self) -> v1::WriteResponse {
        use v1::write_response::Result as Kind;
        let result = match self {
            Written::Success(success) => Kind::Success(success.into_message()),
            Written::Error(error) => Kind::Error(error.into_message()),
        };
        v1::WriteResponse { result: Some(result) }
    }
}

#[derive(Deserialize)]
struct Success {
    tx_id: String,
    sequence: u64,
    log_index: u64,
    committed_at_unix_ms: u64,
    actor: String,
    results: Vec<Outcome>,
}

impl Success {
    fn into_message(self) -> v1::WriteSuccess {
        v1::WriteSuccess {
            tx_id: self.tx_id,
            sequence: self.sequence,
            log_index: self.log_index,
            committed_at_unix_ms: self.committed_at_unix_ms,
            actor: self.actor,
            results: self.results.into_iter().map(Outcome::into_message).collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Outcome {
    Limit { limit: String, revision: u64 },
    Vault { vault: String },
    Account { account: String },
    Entry { entry: String },
}

impl Outcome {
    fn into_message(self) -> v1::OperationResult {
        use v1::operation_result::Result as Kind;
        let result = match self {
            Outcome::Limit { limit, revision } => {
                Kind::Limit(v1::LimitResult { limit, revision, ..v1::LimitResult::default() })
            }
            Outcome::Vault { vault } => Kind::Vault(vault),
            Outcome::Account { account } => Kind::Account(account),
            Outcome::Entry { entry } => Kind::Entry(entry),
        };
        v1::OperationResult { result: Some(result) }
    }
}

#[derive(Deserialize)]
struct WriteError {
    code: String,
    message: String,
    operation: Option<u32>,
    last_committed_sequence: Option<u64>,
}

impl WriteError {
    fn into_message(self) -> v1::WriteError {
        let code = v1::WriteErrorCode::from_str_name(&self.code);
        v1::WriteError {
            code: code.unwrap_or(v1::WriteErrorCode::Unspecified).into(),
            message: self.message,
            operation: self.operation,
            last_committed_sequence: self.last_committed_sequence,
        }
    }
}

#[derive(Deserialize)]
struct ClientState {
    last_committed_sequence: u64,
}

#[derive(Deserialize)]
struct Balances {
    balances: Vec<Balance>,
}

#[derive(Deserialize)]
struct Balance {
    asset: String,
    available: String,
    held: String,
    pending: String,
}

impl Balance {
    fn into_message(self) -> v1::Balance {
        let Balance { asset, available, held, pending } = self;
        v1::Balance { asset, available, held, pending }
    }
}
