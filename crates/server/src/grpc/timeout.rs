//! The client's timeout, from the header `grpc-timeout`.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use tonic::Status;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const DIGITS_MAX: usize = 8;

/// The timeout of a call; `None` without the header.
pub(super) fn of(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    parse(text).map(Some).ok_or_else(|| {
        let allowed = "allowed are 1 to 8 digits and a unit, one of H, M, S, m, u and n";
        Status::invalid_argument(format!("grpc-timeout: found {value:?}, {allowed}"))
    })
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_plain = (1..=DIGITS_MAX).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = is_plain.then(|| digits.parse().ok()).flatten()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        for (text, duration) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("0m", Some(Duration::ZERO)),
            ("5u", Some(Duration::from_micros(5))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("S", None),
            ("5", None),
            ("100000000S", None),
            ("-1S", None),
            ("1.5S", None),
            ("1s", None),
            ("1é", None),
        ] {
            assert_eq!(parse(text), duration, "{text:?}");
        }
    }
}
