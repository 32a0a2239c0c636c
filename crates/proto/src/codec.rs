//! How messages become bytes.

use tonic::Status;
use tonic::codec::DecodeBuf;
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Protobuf, as tonic has it, but for one thing: bytes that are no message are the sender's fault. tonic calls
/// that `INTERNAL`, which here means that nobody knows what happened.
#[derive(Clone, Debug)]
pub struct Codec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Codec<T, U> {
        Codec(ProstCodec::default())
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Decoder<U> {
        Decoder(self.0.decoder())
    }
}

/// Bytes into messages.
#[derive(Clone, Debug)]
pub struct Decoder<U>(ProstDecoder<U>);

impl<U: prost::Message + Default> tonic::codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        self.0.decode(bytes).map_err(|error| {
            let what = error.message();
            Status::invalid_argument(format!("body: found no message of its type ({what}), allowed is one"))
        })
    }
}
