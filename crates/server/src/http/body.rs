//! Reading a request's body: in full, but not too much of it, and not for too long.

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use tokio::time::Instant;

use super::reply::{INVALID_REQUEST, Reply};

/// The largest body that is read.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// So much of a body that is too large is read and thrown away. A client that sends it all before it reads
/// the answer would otherwise see its connection reset, and never the answer.
const DISCARD_BYTES_MAX: u64 = 16 << 20;

/// The whole body, or the answer that says why not.
pub(super) async fn read(body: Body, deadline: Instant) -> Result<Bytes, Reply> {
    match tokio::time::timeout_at(deadline, collect(body)).await {
        Ok(read) => read,
        Err(_) => {
            let message = "body: found only a part of it in time, allowed is to send it at once";
            Err(Reply::too_slow(message).closing())
        }
    }
}

async fn collect(mut body: Body) -> Result<Bytes, Reply> {
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large(body).await);
    }
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    // Nearly every body comes in one piece, which then need not be copied.
    if body.is_end_stream() && first.len() <= BODY_BYTES_MAX {
        return Ok(first);
    }
    let mut whole = Vec::from(first);
    while let Some(piece) = next(&mut body).await? {
        if whole.len() + piece.len() > BODY_BYTES_MAX {
            return Err(too_large(body).await);
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Bytes::from(whole))
}

/// The next piece of data; `None` at the end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Reply> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                // Trailers say nothing here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(error)) => {
                let message = format!("body: found it cut short ({error}), allowed is a whole one");
                return Err(Reply::invalid(&message).closing());
            }
        }
    }
}

async fn too_large(mut body: Body) -> Reply {
    let mut left = DISCARD_BYTES_MAX;
    let mut is_read = body.size_hint().lower() <= left;
    while is_read {
        match next(&mut body).await {
            Ok(None) => break,
            Ok(Some(piece)) if piece.len() as u64 <= left => left -= piece.len() as u64,
            Ok(Some(_)) | Err(_) => is_read = false,
        }
    }
    let message =
        format!("body: found more than {BODY_BYTES_MAX} bytes, allowed are at most {BODY_BYTES_MAX}");
    let reply = Reply::problem(StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, &message);
    if is_read { reply } else { reply.closing() }
}
