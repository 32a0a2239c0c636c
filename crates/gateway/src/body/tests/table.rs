//! Every field of the providers' published requests, and its treatment.
//!
//! The lists are those of openai-python (August 2026) and anthropic-sdk-python (August 2026, betas included), which are
//! generated from the providers' specifications.

use super::*;
use crate::body::fields::{Treatment, can_be_allowed, documented, elsewhere};

/// The treatment that a field must have, with a value that shows it.
enum Is {
    /// Sent upstream as it came; its bytes bound its cost.
    Forwarded(&'static str),
    /// Changed on the way.
    Spliced,
    /// Bounds the output: the value, and the bound with it.
    BoundsOutput(&'static str, u32),
    /// Content whose bytes bound the input, and whose media are counted: a value with one image.
    CountsMedia(&'static str),
    /// Refused with this value, by this name, and forwarded with the other value.
    Refused(&'static str, &'static str, &'static str),
}
use Is::{BoundsOutput, CountsMedia, Forwarded, Refused, Spliced};

const CHAT: &[(&str, Is)] = &[
    ("messages", CountsMedia(r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":""}}]}]"#)),
    ("model", Spliced),
    ("audio", Refused(r#"{"voice":"x","format":"wav"}"#, "audio", "null")),
    ("frequency_penalty", Forwarded("0.5")),
    ("function_call", Forwarded(r#""auto""#)),
    ("functions", Forwarded(r#"[{"name":"f"}]"#)),
    ("logit_bias", Forwarded(r#"{"50256":-100}"#)),
    ("logprobs", Forwarded("true")),
    ("max_completion_tokens", BoundsOutput("77", 77)),
    ("max_tokens", BoundsOutput("77", 77)),
    ("metadata", Forwarded(r#"{"a":"b"}"#)),
    ("modalities", Refused(r#"["text","audio"]"#, "modalities", r#"["text"]"#)),
    ("moderation", Forwarded(r#"{"model":"omni-moderation-latest"}"#)),
    ("n", BoundsOutput("3", 30)),
    ("parallel_tool_calls", Forwarded("true")),
    ("prediction", BoundsOutput(r#"{"type":"content","content":""}"#, 10 + 31)),
    ("presence_penalty", Forwarded("0")),
    ("prompt_cache_key", Forwarded(r#""k""#)),
    ("prompt_cache_options", Forwarded(r#"{"mode":"explicit"}"#)),
    ("prompt_cache_retention", Forwarded(r#""24h""#)),
    ("reasoning_effort", Forwarded(r#""high""#)),
    ("response_format", Forwarded(r#"{"type":"json_schema","json_schema":{}}"#)),
    ("safety_identifier", Forwarded(r#""u""#)),
    ("seed", Forwarded("7")),
    ("service_tier", Refused(r#""priority""#, "service_tier.priority", r#""auto""#)),
    ("stop", Forwarded(r#"["a"]"#)),
    ("store", Forwarded("true")),
    ("stream", Forwarded("false")),
    ("stream_options", Spliced),
    ("temperature", Forwarded("1")),
    ("tool_choice", Forwarded(r#""required""#)),
    ("tools", Refused(r#"[{"type":"web_search"}]"#, "tools.web_search", r#"[{"type":"function","function":{}}]"#)),
    ("top_logprobs", Forwarded("5")),
    ("top_p", Forwarded("1")),
    ("user", Forwarded(r#""u""#)),
    ("verbosity", Forwarded(r#""low""#)),
    ("web_search_options", Refused("{}", "web_search_options", "null")),
];

const COMPLETIONS: &[(&str, Is)] = &[
    ("model", Spliced),
    ("prompt", BoundsOutput(r#"["a","b"]"#, 20)),
    ("best_of", BoundsOutput("4", 40)),
    ("echo", Forwarded("true")),
    ("frequency_penalty", Forwarded("0.5")),
    ("logit_bias", Forwarded(r#"{"50256":-100}"#)),
    ("logprobs", Forwarded("5")),
    ("max_tokens", BoundsOutput("77", 77)),
    ("n", BoundsOutput("3", 30)),
    ("presence_penalty", Forwarded("0")),
    ("seed", Forwarded("7")),
    ("stop", Forwarded(r#""a""#)),
    ("stream", Forwarded("false")),
    ("stream_options", Spliced),
    ("suffix", Forwarded(r#""s""#)),
    ("temperature", Forwarded("1")),
    ("top_p", Forwarded("1")),
    ("user", Forwarded(r#""u""#)),
];

const EMBEDDINGS: &[(&str, Is)] = &[
    ("input", Forwarded(r#"["a","b"]"#)),
    ("model", Spliced),
    ("dimensions", Forwarded("256")),
    ("encoding_format", Forwarded(r#""base64""#)),
    ("user", Forwarded(r#""u""#)),
];

const RESPONSES: &[(&str, Is)] = &[
    ("background", Refused("true", "background", "false")),
    ("context_management", Refused(r#"[{"type":"compaction"}]"#, "context_management", "[]")),
    ("conversation", Refused(r#""conv_1""#, "conversation", "null")),
    ("include", Forwarded(r#"["reasoning.encrypted_content"]"#)),
    ("input", CountsMedia(r#"[{"role":"user","content":[{"type":"input_image","image_url":""}]}]"#)),
    ("instructions", Forwarded(r#""be brief""#)),
    ("max_output_tokens", BoundsOutput("77", 77)),
    ("max_tool_calls", Forwarded("3")),
    ("metadata", Forwarded(r#"{"a":"b"}"#)),
    ("model", Spliced),
    ("moderation", Forwarded(r#"{"model":"omni-moderation-latest"}"#)),
    ("parallel_tool_calls", Forwarded("true")),
    ("previous_response_id", Refused(r#""resp_1""#, "previous_response_id", "null")),
    ("prompt", Refused(r#"{"id":"pmpt_1"}"#, "prompt", "null")),
    ("prompt_cache_key", Forwarded(r#""k""#)),
    ("prompt_cache_options", Forwarded(r#"{"mode":"explicit"}"#)),
    ("prompt_cache_retention", Forwarded(r#""24h""#)),
    ("reasoning", Refused(r#"{"mode":"pro"}"#, "reasoning.mode.pro", r#"{"effort":"high","mode":"standard"}"#)),
    ("safety_identifier", Forwarded(r#""u""#)),
    ("service_tier", Refused(r#""flex""#, "service_tier.flex", r#""default""#)),
    ("store", Forwarded("true")),
    ("stream", Forwarded("true")),
    ("stream_options", Forwarded(r#"{"include_obfuscation":false}"#)),
    ("temperature", Forwarded("1")),
    ("text", Forwarded(r#"{"format":{"type":"text"}}"#)),
    ("tool_choice", Forwarded(r#""auto""#)),
    ("tools", Refused(r#"[{"type":"file_search"}]"#, "tools.file_search", r#"[{"type":"custom","name":"x"}]"#)),
    ("top_logprobs", Forwarded("5")),
    ("top_p", Forwarded("1")),
    ("truncation", Forwarded(r#""auto""#)),
    ("user", Forwarded(r#""u""#)),
];

const IMAGE: &str = r#"[{"role":"user","content":[{"type":"image","source":{"type":"url","url":""}}]}]"#;
const SYSTEM_IMAGE: &str = r#"[{"type":"image","source":{"type":"url","url":""}}]"#;
const SERVER_TOOL: &str = r#"[{"type":"web_search_20250305","name":"web_search"}]"#;

const MESSAGES: &[(&str, Is)] = &[
    ("max_tokens", BoundsOutput("77", 77)),
    ("messages", CountsMedia(IMAGE)),
    ("model", Spliced),
    ("cache_control", Forwarded(r#"{"type":"ephemeral","ttl":"1h"}"#)),
    ("container", Refused(r#""container_1""#, "container", "null")),
    (
        "context_management",
        Refused(
            r#"{"edits":[{"type":"compact_20260112"}]}"#,
            "context_management.compact_20260112",
            r#"{"edits":[{"type":"clear_tool_uses_20250919"}]}"#,
        ),
    ),
    ("diagnostics", Refused(r#"{"previous_message_id":"msg_1"}"#, "diagnostics", "null")),
    ("fallback_credit_token", Refused(r#""t""#, "fallback_credit_token", "null")),
    ("fallbacks", Refused(r#"[{"model":"other"}]"#, "fallbacks", "[]")),
    ("inference_geo", Refused(r#""us""#, "inference_geo.us", r#""global""#)),
    ("mcp_servers", Refused(r#"[{"url":"https://a"}]"#, "mcp_servers", "[]")),
    ("metadata", Forwarded(r#"{"user_id":"u"}"#)),
    ("output_config", Forwarded(r#"{"effort":"max"}"#)),
    ("output_format", Forwarded(r#"{"type":"json_schema","schema":{}}"#)),
    ("service_tier", Refused(r#""priority""#, "service_tier.priority", r#""standard_only""#)),
    ("speed", Refused(r#""fast""#, "speed.fast", r#""standard""#)),
    ("stop_sequences", Forwarded(r#"["a"]"#)),
    ("stream", Forwarded("true")),
    ("system", CountsMedia(SYSTEM_IMAGE)),
    ("temperature", Forwarded("1")),
    ("thinking", BoundsOutput(r#"{"type":"enabled","budget_tokens":77}"#, 77)),
    ("tool_choice", Forwarded(r#"{"type":"auto"}"#)),
    ("tools", Refused(SERVER_TOOL, "tools.web_search_20250305", r#"[{"name":"x","input_schema":{}}]"#)),
    ("top_k", Forwarded("5")),
    ("top_p", Forwarded("1")),
];

const COUNT_TOKENS: &[(&str, Is)] = &[
    ("messages", Forwarded(r#"[{"role":"user","content":"hi"}]"#)),
    ("model", Spliced),
    ("cache_control", Forwarded(r#"{"type":"ephemeral"}"#)),
    (
        "context_management",
        Refused(r#"{"edits":[{"type":"compact_20260112"}]}"#, "context_management.compact_20260112", r#"{"edits":[]}"#),
    ),
    ("mcp_servers", Refused(r#"[{"url":"https://a"}]"#, "mcp_servers", "[]")),
    ("output_config", Forwarded(r#"{"effort":"max"}"#)),
    ("output_format", Forwarded(r#"{"type":"json_schema"}"#)),
    ("speed", Refused(r#""fast""#, "speed.fast", "null")),
    ("system", Forwarded(r#""be brief""#)),
    ("thinking", Forwarded(r#"{"type":"enabled","budget_tokens":77}"#)),
    ("tool_choice", Forwarded(r#"{"type":"auto"}"#)),
    ("tools", Refused(SERVER_TOOL, "tools.web_search_20250305", r#"[{"name":"x"}]"#)),
];

/// A body with a field, and a cap of 10 unless the field is a cap itself.
fn with(endpoint: Endpoint, field: &str, value: &str) -> String {
    let cap = match endpoint {
        Endpoint::Responses => "max_output_tokens",
        Endpoint::Embeddings | Endpoint::CountTokens => "other",
        _ => "max_tokens",
    };
    let cap = if cap == field { String::new() } else { format!(r#","{cap}":10"#) };
    format!(r#"{{"model":"up"{cap},"{field}":{value}}}"#)
}

fn sent(endpoint: Endpoint, body: &str) -> Result<Bytes, BodyRefusal> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let call = CallBody::scan(endpoint, &body)?;
    Ok(call.splices(&call.bound(&body, &rules())?, "up").apply(&body))
}

#[track_caller]
fn check(endpoint: Endpoint, table: &[(&str, Is)]) {
    for (field, is) in table {
        let place = format!("{endpoint:?} {field}");
        match is {
            Forwarded(value) => {
                let body = with(endpoint, field, value);
                assert_eq!(sent(endpoint, &body).unwrap(), body, "{place}");
            }
            Spliced if *field == "model" => {
                let body = with(endpoint, "other", "1").replace("\"up\"", "\"m\"");
                assert_eq!(sent(endpoint, &body).unwrap(), body.replace("\"m\"", "\"up\""), "{place}");
            }
            Spliced => {
                let body = with(endpoint, field, "null").replace("\"up\"", "\"up\",\"stream\":true");
                assert_eq!(
                    sent(endpoint, &body).unwrap(),
                    body.replace("null", r#"{"include_usage":true}"#),
                    "{place}"
                );
            }
            BoundsOutput(value, output) => {
                let bounded = bound(endpoint, &with(endpoint, field, value), &rules()).unwrap();
                assert_eq!(bounded.output_tokens_max, *output, "{place}");
            }
            CountsMedia(value) => {
                let body = with(endpoint, field, value);
                let bounded = bound(endpoint, &body, &rules()).unwrap();
                let text = u32::try_from(body.len()).unwrap();
                assert_eq!(bounded.input_tokens_max, text + INPUT_OVERHEAD_TOKENS + 2_000, "{place}");
            }
            Refused(value, name, harmless) => {
                let refusal = sent(endpoint, &with(endpoint, field, value)).expect_err(&place);
                assert!(matches!(&refusal, BodyRefusal::NotAllowed { name: found, .. } if found == name), "{refusal}");
                assert!(refusal.field().is_some_and(|refused| refused.starts_with(field)), "{refusal}");
                let body = with(endpoint, field, harmless);
                assert_eq!(sent(endpoint, &body).unwrap(), body, "{place}");
            }
        }
    }
}

#[test]
fn every_published_field_is_bounded_spliced_forwarded_or_refused() {
    let endpoints = [
        (Endpoint::Chat, CHAT),
        (Endpoint::Completions, COMPLETIONS),
        (Endpoint::Embeddings, EMBEDDINGS),
        (Endpoint::Responses, RESPONSES),
        (Endpoint::Messages, MESSAGES),
        (Endpoint::CountTokens, COUNT_TOKENS),
    ];
    for (endpoint, table) in endpoints {
        check(endpoint, table);
        let mut published: Vec<&str> = table.iter().map(|(field, _)| *field).collect();
        let mut known: Vec<&str> = documented(endpoint).iter().map(|field| field.name).collect();
        published.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, published, "{endpoint:?}");
    }
}

#[test]
fn fields_of_other_endpoints_and_servers_are_bounded_and_refused_too() {
    for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages] {
        for field in ["n_predict", "num_predict", "max_new_tokens", "max_output_tokens", "max_completion_tokens"] {
            let bounded = bound(endpoint, &with(endpoint, field, "500"), &rules()).unwrap();
            assert_eq!(bounded.output_tokens_max, 500, "{endpoint:?} {field}");
        }
        for field in ["n", "best_of", "n_cmpl", "num_return_sequences"] {
            let bounded = bound(endpoint, &with(endpoint, field, "5"), &rules()).unwrap();
            assert_eq!(bounded.output_tokens_max, 50, "{endpoint:?} {field}");
        }
        for field in ["previous_response_id", "conversation", "data_sources", "fallbacks", "models", "plugins"] {
            is_refused(endpoint, field);
        }
        for field in ["preset", "provider", "prompt_embeds", "chat_template", "media_io_kwargs", "mm_processor_kwargs"]
        {
            is_refused(endpoint, field);
        }
    }
    for field in ["chat_template", "media_io_kwargs", "mm_processor_kwargs"] {
        is_refused(Endpoint::Embeddings, field);
    }
}

fn is_refused(endpoint: Endpoint, field: &str) {
    let refusal = bound(endpoint, &with(endpoint, field, r#"["x"]"#), &rules()).expect_err(field);
    let BodyRefusal::NotAllowed { name, .. } = &refusal else { panic!("{endpoint:?} {field}: {refusal}") };
    assert!(can_be_allowed(name), "{endpoint:?} {name}");
}

/// A typing error in `allow` allowed nothing, and said nothing.
#[test]
fn names_that_nothing_is_refused_by_cannot_be_allowed() {
    for name in ["tools.web_search", "input.item_reference", "content.x", "source.x", "file_id", "audio", "background"]
    {
        assert!(can_be_allowed(name), "{name}");
    }
    for name in ["service_tier.priority", "reasoning.mode.pro", "context_management.compact", "prompt"] {
        assert!(can_be_allowed(name), "{name}");
    }
    for name in ["", "tool.web_search", "web_search", "max_tokens", "messages", "backgroud", "Background"] {
        assert!(!can_be_allowed(name), "{name}");
    }
}

#[test]
fn the_documentation_names_every_field_that_is_refused() {
    let page = include_str!("../../../../../docs/gateway.md");
    let endpoints =
        [Endpoint::Chat, Endpoint::Completions, Endpoint::Embeddings, Endpoint::Responses, Endpoint::Messages];
    for endpoint in endpoints {
        for field in documented(endpoint).iter().chain(elsewhere(endpoint)) {
            let is_refused = matches!(
                field.treatment,
                Treatment::Refused(_) | Treatment::RefusedInside(..) | Treatment::ContextEdits | Treatment::Cap
            );
            let is_named = [format!("`{}`", field.name), format!("`{}:", field.name), format!("`{}.", field.name)]
                .iter()
                .any(|name| page.contains(name.as_str()));
            assert!(!is_refused || is_named, "docs/gateway.md does not name {}", field.name);
        }
    }
}
