//! Earmark as protobuf: what goes over the wire, and what it means.
//!
//! The files under `proto/` say what clients may rely on; [`v1`] is made from them. [`convert`] is the only place
//! where a message of theirs becomes a value of [`earmark_core`] and the other way round. With the feature
//! `client` there are also clients and what they connect by; a server needs neither.

mod codec;
pub mod convert;

pub use codec::{Codec, Decoder};

/// The package `earmark.v1`, as it was generated.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    reason = "nobody wrote it by hand"
)]
pub mod v1 {
    tonic::include_proto!("earmark.v1");
}

/// The package `earmark.peer.v1`, as it was generated: what nodes say to each other.
#[cfg(feature = "peer")]
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    reason = "nobody wrote it by hand"
)]
pub mod peer {
    tonic::include_proto!("earmark.peer.v1");
}

/// The types of the package `earmark.v1`, for servers that are asked for them by reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("earmark.v1");

/// The paths of all methods of the package `earmark.v1`, from its files: a table of methods that is as long as this does
/// not compile while a new one has no row.
pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));
