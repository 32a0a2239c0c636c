//! The protobuf codec.

use tonic::Status;
use tonic::codec::DecodeBuf;
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// tonic's protobuf codec, except that undecodable bytes are `INVALID_ARGUMENT`. tonic answers `INTERNAL`, which here
/// means an unknown outcome.
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

/// Decodes messages.
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
