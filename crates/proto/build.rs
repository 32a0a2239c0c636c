//! Compiles the protobuf files without `protoc`.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;
use tonic_prost_build::Builder;

const FOLDER: &str = "proto";
const FILES: [&str; 6] = [
    "earmark/v1/decisions.proto",
    "earmark/v1/limit.proto",
    "earmark/v1/limits.proto",
    "earmark/v1/calls.proto",
    "earmark/v1/ledger.proto",
    "earmark/v1/cluster.proto",
];

const ENVOY_FILE: &str = "envoy/service/ratelimit/v3/rls.proto";
const PEER_FILE: &str = "earmark/peer/v1/peer.proto";
const OTLP_FILE: &str = "opentelemetry/proto/collector/trace/v1/trace_service.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let mut compiler = protox::Compiler::new([FOLDER])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    // Server reflection needs the types, not their comments.
    let described = compiler.file_descriptor_set();
    let bare = compiler.include_source_info(false).encode_file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("earmark.v1.bin"), bare)?;
    fs::write(out.join("methods.rs"), format!("&{:?}", methods(&described)))?;

    let has_client = env::var_os("CARGO_FEATURE_CLIENT").is_some();
    let mut builder = tonic_prost_build::configure()
        .build_client(has_client)
        .build_transport(has_client)
        .codec_path("crate::Codec")
        .emit_rerun_if_changed(false);
    if has_client {
        builder = as_json(builder, &described);
    }
    builder.compile_fds(described)?;
    envoy(&out, has_client)?;
    if env::var_os("CARGO_FEATURE_PEER").is_some() {
        let described = protox::compile([PEER_FILE], [FOLDER])?;
        fs::write(out.join("peer_methods.rs"), format!("&{:?}", methods(&described)))?;
        tonic_prost_build::configure()
            .build_transport(false)
            // A founder without a cluster answers Hello only.
            .generate_default_stubs(true)
            .bytes(".")
            .emit_rerun_if_changed(false)
            .compile_fds(described)?;
    }
    if env::var_os("CARGO_FEATURE_OTLP").is_some() {
        let described = protox::compile([OTLP_FILE], [FOLDER])?;
        tonic_prost_build::configure().build_transport(false).emit_rerun_if_changed(false).compile_fds(described)?;
    }
    Ok(())
}

/// The rate limit service of Envoy. Its messages have no JSON.
fn envoy(out: &Path, has_client: bool) -> Result<(), Box<dyn Error>> {
    let mut compiler = protox::Compiler::new([FOLDER])?;
    compiler.include_imports(true).include_source_info(true).open_files([ENVOY_FILE])?;
    let described = compiler.file_descriptor_set();
    fs::write(out.join("envoy.bin"), compiler.include_source_info(false).encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .build_client(has_client)
        .build_transport(has_client)
        .codec_path("crate::Codec")
        .include_file("envoy.rs")
        .emit_rerun_if_changed(false)
        .compile_fds(described)?;
    Ok(())
}

/// Paths of all methods.
fn methods(described: &FileDescriptorSet) -> Vec<String> {
    let mut methods = Vec::new();
    for file in &described.file {
        for service in &file.service {
            let path = |method| format!("/{}.{}/{method}", file.package(), service.name());
            methods.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    methods
}

/// Fields that a JSON response may leave out although protobuf does not mark them as optional.
const JSON_DEFAULTS: [&str; 9] = [
    "ReserveResponse.limited_by",
    "ReserveResponse.never",
    "ReserveResponse.would_deny",
    "ExtendResponse.limited_by",
    "ExtendResponse.never",
    "LimitDefinition.unit",
    "LimitDefinition.description",
    "LimitDefinition.overage",
    "WriteSuccess.sequence",
];

/// Derives serde for the messages, so that they are also the JSON bodies of the HTTP API; see `src/json.rs`.
fn as_json(mut builder: Builder, described: &FileDescriptorSet) -> Builder {
    const DERIVE: &str = "#[derive(serde::Deserialize, serde::Serialize)]";
    for message in described.file.iter().flat_map(|file| &file.message_type) {
        let name = message.name();
        builder = builder.message_attribute(name, DERIVE);
        for field in &message.field {
            let path = format!("{name}.{}", field.name());
            if field.proto3_optional() {
                let skip = "#[serde(skip_serializing_if = \"Option::is_none\")]";
                builder = builder.field_attribute(&path, skip);
            }
            if field.r#type() == Type::Enum {
                let name = field.type_name().rsplit('.').next().unwrap_or_default();
                let with = match field.proto3_optional() {
                    true => format!("#[serde(default, with = \"crate::json::optional::{name}\")]"),
                    false => format!("#[serde(with = \"crate::json::{name}\")]"),
                };
                builder = builder.field_attribute(&path, with);
            }
            if field.name() == "labels" {
                let skip = "#[serde(default, skip_serializing_if = \"std::collections::HashMap::is_empty\")]";
                builder = builder.field_attribute(&path, skip);
            }
            if JSON_DEFAULTS.contains(&path.as_str()) {
                builder = builder.field_attribute(&path, "#[serde(default)]");
            }
        }
        let oneofs: BTreeSet<i32> = message
            .field
            .iter()
            .filter(|field| !field.proto3_optional())
            .filter_map(|field| field.oneof_index)
            .collect();
        for oneof in oneofs.into_iter().filter_map(|index| message.oneof_decl.get(usize::try_from(index).ok()?)) {
            let path = format!("{name}.{}", oneof.name());
            builder = builder
                .field_attribute(&path, "#[serde(flatten)]")
                .type_attribute(&path, format!("{DERIVE}\n#[serde(rename_all = \"snake_case\")]"));
        }
    }
    builder
        .field_attribute("WriteRequest.client_id", "#[serde(skip_serializing_if = \"String::is_empty\")]")
        .field_attribute("WriteRequest.sequence", "#[serde(skip_serializing_if = \"crate::json::is_zero\")]")
        .field_attribute("GetUsageResponse.debt", "#[serde(with = \"crate::json::number\")]")
        .field_attribute("LimitUsage.debt", "#[serde(with = \"crate::json::number\")]")
        .message_attribute("OpenAccountOperation", "#[serde(into = \"crate::json::OpenAccount\")]")
        .message_attribute("Plan", "#[serde(into = \"crate::json::PlanJson\")]")
        .message_attribute("OperationResult", "#[serde(from = \"crate::json::OperationResult\")]")
}
