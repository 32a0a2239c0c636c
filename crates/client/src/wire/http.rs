//! A server over HTTP.

use serde::Deserialize;

use super::read::Reader;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::{ConnectionPool, HttpResponse, StatusCode, excerpt};
use crate::request::Request;

/// A server that is asked in JSON over HTTP.
pub(crate) struct Http(pub(crate) ConnectionPool);

impl Http {
    pub(super) async fn ask<R: Request>(&self, request: &R, by: Deadline) -> Result<R::Answer, Failure> {
        let http = request.http().map_err(|error| Failure::Invalid { message: error.to_string() })?;
        let response = self.0.send_by(&http, by).await?;
        let reader = Reader(self.0.name());
        match request.parse(&response.body) {
            Ok(message) if R::is_answer(response.status, &message) => request.read(reader, message),
            Err(error) if response.status == StatusCode::OK => Err(unexpected(reader, &response, error)),
            _ => Err(refusal(reader, &response)),
        }
    }
}

fn unexpected(reader: Reader<'_>, response: &HttpResponse, what: impl std::fmt::Display) -> Failure {
    reader.unexpected(format!("{what}; status {}: {}", response.status.as_u16(), excerpt(&response.body)))
}

/// The failure behind a status other than 200.
fn refusal(reader: Reader<'_>, response: &HttpResponse) -> Failure {
    #[derive(Deserialize)]
    struct Problem {
        error: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Problem { error, message }) = serde_json::from_slice::<Problem>(&response.body) else {
        return unexpected(reader, response, "the body is not the JSON of an error");
    };
    let message = if message.is_empty() { error } else { message };
    match response.status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => Failure::Invalid { message },
        StatusCode::UNAUTHORIZED => Failure::Unauthorized { message },
        StatusCode::FORBIDDEN => Failure::Forbidden { message },
        StatusCode::TOO_MANY_REQUESTS => reader.rate_limited(message),
        StatusCode::NOT_FOUND => Failure::NotFound { message },
        // The body did not arrive in time, so nothing was executed. It may arrive with the next attempt.
        StatusCode::REQUEST_TIMEOUT => reader.unavailable(message),
        status if status.is_server_error() => reader.unavailable(message),
        _ => unexpected(reader, response, "an unknown status"),
    }
}
