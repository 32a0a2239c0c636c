//! Earmark's protobuf messages and their conversion.
//!
//! The files under `proto/` are the contract; [`v1`] is generated from them. Only [`convert`] converts between messages
//! and values of [`earmark_core`]. The feature `client` adds generated clients.

mod codec;
pub mod convert;
#[cfg(feature = "client")]
mod json;

pub use codec::{Codec, Decoder};

/// Generated code of the package `earmark.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines, reason = "nobody wrote it by hand")]
pub mod v1 {
    tonic::include_proto!("earmark.v1");
}

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines, reason = "nobody wrote it by hand")]
mod generated {
    tonic::include_proto!("envoy");
}

/// Generated code of Envoy's rate limit service, from minimal files with its packages, names and numbers.
pub use generated::envoy;

/// Descriptors of Envoy's rate limit service, for server reflection.
pub const ENVOY_FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("envoy");

/// Generated code of the package `earmark.peer.v1`, the protocol between nodes.
#[cfg(feature = "peer")]
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines, reason = "nobody wrote it by hand")]
pub mod peer {
    tonic::include_proto!("earmark.peer.v1");
}

/// Generated code of the packages `opentelemetry.proto`, as far as an exporter of spans needs them.
#[cfg(feature = "otlp")]
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines, reason = "nobody wrote it by hand")]
pub mod opentelemetry {
    pub mod proto {
        pub mod collector {
            pub mod trace {
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
                }
            }
        }
        pub mod common {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.common.v1");
            }
        }
        pub mod resource {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.resource.v1");
            }
        }
        pub mod trace {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.trace.v1");
            }
        }
    }
}

/// Paths of all methods of `earmark.peer.v1`.
#[cfg(feature = "peer")]
pub const PEER_METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/peer_methods.rs"));

/// Descriptors of the package `earmark.v1`, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("earmark.v1");

/// Paths of all methods of `earmark.v1`. A table with one row per method fails to compile while a new method has no
/// row.
pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));
