//! The frames of gRPC messages: a flag, a length of four bytes, and the message. For unary calls that are served without
//! tonic.

use axum::body::Bytes;
use prost::Message;
use tonic::Status;

/// Bytes before a message.
const HEAD_BYTES: usize = 5;

/// The only message of a request, uncompressed. The statuses are those that tonic gives.
pub(super) fn decode<M: Message + Default>(body: &Bytes) -> Result<M, Status> {
    let Some((head, rest)) = body.split_first_chunk::<HEAD_BYTES>() else {
        return Err(Status::internal("the request has no message"));
    };
    let [flag, length @ ..] = *head;
    if flag != 0 {
        let what = "the message is compressed, and this server takes uncompressed ones only";
        return Err(Status::unimplemented(what));
    }
    // A length that does not fit exceeds the body.
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let Some(message) = rest.get(..length) else {
        return Err(Status::internal(format!("the message has {} bytes, announced are {length}", rest.len())));
    };
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// A message in its frame.
pub(super) fn encode(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let announced = u32::try_from(length).map_err(|_| Status::internal("the answer is larger than 4 GiB"))?;
    let mut frame = Vec::with_capacity(HEAD_BYTES.saturating_add(length));
    frame.push(0);
    frame.extend_from_slice(&announced.to_be_bytes());
    message.encode(&mut frame).map_err(|error| Status::internal(error.to_string()))?;
    Ok(Bytes::from(frame))
}

#[cfg(test)]
mod tests {
    use earmark_proto::envoy::service::ratelimit::v3::RateLimitRequest;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written_and_a_broken_frame_is_refused() {
        let message = RateLimitRequest { domain: "default".into(), ..RateLimitRequest::default() };
        let frame = encode(&message).unwrap();
        assert_eq!(frame[..5], [0, 0, 0, 0, 9]);
        assert_eq!(decode::<RateLimitRequest>(&frame).unwrap(), message);
        let compressed = Bytes::from([&[1][..], &frame[1..]].concat());
        for (body, code) in [
            (Bytes::new(), Code::Internal),
            (frame.slice(..4), Code::Internal),
            (frame.slice(..frame.len() - 1), Code::Internal),
            (Bytes::from_static(&[0, 255, 255, 255, 255, 1]), Code::Internal),
            (Bytes::from_static(&[0, 0, 0, 0, 2, 255, 255]), Code::Internal),
            (compressed, Code::Unimplemented),
        ] {
            assert_eq!(decode::<RateLimitRequest>(&body).unwrap_err().code(), code, "{body:?}");
        }
    }
}
