//! Compiles the protobuf files without `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const FOLDER: &str = "proto";
const FILES: [&str; 3] = ["earmark/v1/limit.proto", "earmark/v1/limits.proto", "earmark/v1/ledger.proto"];

const PEER_FILE: &str = "earmark/peer/v1/peer.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let mut compiler = protox::Compiler::new([FOLDER])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    // Server reflection needs the types, not their comments.
    let described = compiler.file_descriptor_set();
    let bare = compiler.include_source_info(false).encode_file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("earmark.v1.bin"), bare)?;
    let mut methods = Vec::new();
    for file in &described.file {
        for service in &file.service {
            let path = |method| format!("/{}.{}/{method}", file.package(), service.name());
            methods.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    fs::write(out.join("methods.rs"), format!("&{methods:?}"))?;

    let has_client = env::var_os("CARGO_FEATURE_CLIENT").is_some();
    tonic_prost_build::configure()
        .build_client(has_client)
        .build_transport(has_client)
        .codec_path("crate::Codec")
        .emit_rerun_if_changed(false)
        .compile_fds(described)?;
    if env::var_os("CARGO_FEATURE_PEER").is_some() {
        let described = protox::compile([PEER_FILE], [FOLDER])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .bytes(".")
            .emit_rerun_if_changed(false)
            .compile_fds(described)?;
    }
    Ok(())
}
