//! Every field of the providers' published requests, with its treatment.
//!
//! Unknown fields are forwarded, because providers and model servers add fields all the time. A field stands here if it
//! bounds the call, is changed on the way, or is refused; and if a provider documents it, so that the table is complete.

use crate::api::Endpoint;

/// A known field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name of the field.
    pub name: &'static str,
    /// The gateway's treatment of it.
    pub treatment: Treatment,
}

/// The gateway's treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Forwarded unchanged. Its bytes bound the input that it can cause, and it causes no other cost.
    Forwarded,
    /// The name of the model, which is replaced by the target's.
    Model,
    /// Whether the answer is a stream.
    Stream,
    /// Options of a stream. `include_usage` is set to true.
    StreamOptions,
    /// A cap on the output. The largest bounds the call; a missing one is inserted.
    Cap,
    /// A number of answers, which multiplies the output.
    Choices,
    /// A prompt or a list of prompts, each of which has an answer of its own.
    Prompts,
    /// An object whose `budget_tokens` bounds the output from below.
    Thinking,
    /// A predicted answer. Its rejected tokens are charged as output, so its bytes are added to the output.
    Prediction,
    /// Messages, of which each has content.
    Messages,
    /// Content: a text, or a list of parts. Its bytes bound the input; media cost a configured maximum each.
    Content,
    /// The input of a response: a text, or a list of items.
    Items,
    /// Tools. All but `function` and `custom` are refused.
    Tools,
    /// Edits of the context. All but those that remove something are refused.
    ContextEdits,
    /// The user, forwarded and offered as an attribute.
    User,
    /// An object whose `user_id` is the user, forwarded.
    Metadata,
    /// An object of which one field is refused unless it has one of these values.
    RefusedInside(&'static str, &'static [&'static str]),
    /// Refused unless it is null, false, empty, or one of these texts or a list of them.
    Refused(&'static [&'static str]),
}

const fn field(name: &'static str, treatment: Treatment) -> Field {
    Field { name, treatment }
}

const fn forwarded(name: &'static str) -> Field {
    field(name, Treatment::Forwarded)
}

const fn refused(name: &'static str) -> Field {
    field(name, Treatment::Refused(&[]))
}

/// Values of `service_tier` that cost the ordinary price.
const ORDINARY_TIERS: &[&str] = &["auto", "default", "standard", "standard_only"];

/// `POST /v1/chat/completions`.
const CHAT: &[Field] = &[
    field("audio", Treatment::Refused(&[])),
    forwarded("frequency_penalty"),
    forwarded("function_call"),
    forwarded("functions"),
    forwarded("logit_bias"),
    forwarded("logprobs"),
    field("max_completion_tokens", Treatment::Cap),
    field("max_tokens", Treatment::Cap),
    field("messages", Treatment::Messages),
    forwarded("metadata"),
    field("modalities", Treatment::Refused(&["text"])),
    field("model", Treatment::Model),
    forwarded("moderation"),
    field("n", Treatment::Choices),
    forwarded("parallel_tool_calls"),
    field("prediction", Treatment::Prediction),
    forwarded("presence_penalty"),
    forwarded("prompt_cache_key"),
    forwarded("prompt_cache_options"),
    forwarded("prompt_cache_retention"),
    forwarded("reasoning_effort"),
    forwarded("response_format"),
    field("safety_identifier", Treatment::User),
    forwarded("seed"),
    field("service_tier", Treatment::Refused(ORDINARY_TIERS)),
    forwarded("stop"),
    forwarded("store"),
    field("stream", Treatment::Stream),
    field("stream_options", Treatment::StreamOptions),
    forwarded("temperature"),
    forwarded("tool_choice"),
    field("tools", Treatment::Tools),
    forwarded("top_logprobs"),
    forwarded("top_p"),
    field("user", Treatment::User),
    forwarded("verbosity"),
    refused("web_search_options"),
];

/// `POST /v1/completions`.
const COMPLETIONS: &[Field] = &[
    field("best_of", Treatment::Choices),
    forwarded("echo"),
    forwarded("frequency_penalty"),
    forwarded("logit_bias"),
    forwarded("logprobs"),
    field("max_tokens", Treatment::Cap),
    field("model", Treatment::Model),
    field("n", Treatment::Choices),
    forwarded("presence_penalty"),
    field("prompt", Treatment::Prompts),
    forwarded("seed"),
    forwarded("stop"),
    field("stream", Treatment::Stream),
    field("stream_options", Treatment::StreamOptions),
    forwarded("suffix"),
    forwarded("temperature"),
    forwarded("top_p"),
    field("user", Treatment::User),
];

/// `POST /v1/embeddings`.
const EMBEDDINGS: &[Field] = &[
    forwarded("dimensions"),
    forwarded("encoding_format"),
    forwarded("input"),
    field("model", Treatment::Model),
    field("user", Treatment::User),
];

/// Embeddings elsewhere: vLLM embeds conversations, with media.
const EMBEDDINGS_ELSEWHERE: &[Field] = &[
    refused("chat_template"),
    refused("media_io_kwargs"),
    field("messages", Treatment::Messages),
    refused("mm_processor_kwargs"),
];

/// `POST /v1/responses`.
const RESPONSES: &[Field] = &[
    refused("background"),
    refused("context_management"),
    refused("conversation"),
    forwarded("include"),
    field("input", Treatment::Items),
    forwarded("instructions"),
    field("max_output_tokens", Treatment::Cap),
    forwarded("max_tool_calls"),
    forwarded("metadata"),
    field("model", Treatment::Model),
    forwarded("moderation"),
    forwarded("parallel_tool_calls"),
    refused("previous_response_id"),
    refused("prompt"),
    forwarded("prompt_cache_key"),
    forwarded("prompt_cache_options"),
    forwarded("prompt_cache_retention"),
    field("reasoning", Treatment::RefusedInside("mode", &["standard"])),
    field("safety_identifier", Treatment::User),
    field("service_tier", Treatment::Refused(ORDINARY_TIERS)),
    forwarded("store"),
    field("stream", Treatment::Stream),
    forwarded("stream_options"),
    forwarded("temperature"),
    forwarded("text"),
    forwarded("tool_choice"),
    field("tools", Treatment::Tools),
    forwarded("top_logprobs"),
    forwarded("top_p"),
    forwarded("truncation"),
    field("user", Treatment::User),
];

/// `POST /v1/messages`, betas included.
const MESSAGES: &[Field] = &[
    forwarded("cache_control"),
    refused("container"),
    field("context_management", Treatment::ContextEdits),
    refused("diagnostics"),
    refused("fallback_credit_token"),
    refused("fallbacks"),
    field("inference_geo", Treatment::Refused(&["global"])),
    field("max_tokens", Treatment::Cap),
    refused("mcp_servers"),
    field("messages", Treatment::Messages),
    field("metadata", Treatment::Metadata),
    field("model", Treatment::Model),
    forwarded("output_config"),
    forwarded("output_format"),
    field("service_tier", Treatment::Refused(ORDINARY_TIERS)),
    field("speed", Treatment::Refused(&["standard"])),
    forwarded("stop_sequences"),
    field("stream", Treatment::Stream),
    field("system", Treatment::Content),
    forwarded("temperature"),
    field("thinking", Treatment::Thinking),
    forwarded("tool_choice"),
    field("tools", Treatment::Tools),
    forwarded("top_k"),
    forwarded("top_p"),
];

/// `POST /v1/messages/count_tokens`, betas included. It costs no tokens.
const COUNT_TOKENS: &[Field] = &[
    forwarded("cache_control"),
    field("context_management", Treatment::ContextEdits),
    refused("mcp_servers"),
    field("messages", Treatment::Messages),
    field("model", Treatment::Model),
    forwarded("output_config"),
    forwarded("output_format"),
    field("speed", Treatment::Refused(&["standard"])),
    field("system", Treatment::Content),
    forwarded("thinking"),
    forwarded("tool_choice"),
    field("tools", Treatment::Tools),
];

/// Fields of other model servers and of other endpoints. They are looked up last, at every endpoint that generates, so
/// that an upstream that reads them is bounded too.
const ELSEWHERE: &[Field] = &[
    field("best_of", Treatment::Choices),
    // vLLM: a template of the caller's may expand without a bound.
    refused("chat_template"),
    refused("container"),
    refused("conversation"),
    // Azure: retrieved documents.
    refused("data_sources"),
    // Other models, at other prices.
    refused("fallbacks"),
    field("max_completion_tokens", Treatment::Cap),
    field("max_new_tokens", Treatment::Cap),
    field("max_output_tokens", Treatment::Cap),
    field("max_tokens", Treatment::Cap),
    refused("mcp_servers"),
    // vLLM: sizes and frames of media, of which each then has more tokens than its configured maximum.
    refused("media_io_kwargs"),
    refused("mm_processor_kwargs"),
    // OpenRouter: other models.
    refused("models"),
    field("n", Treatment::Choices),
    // llama.cpp: `n_predict` overrides `max_tokens`.
    field("n_cmpl", Treatment::Choices),
    field("n_predict", Treatment::Cap),
    field("num_predict", Treatment::Cap),
    field("num_return_sequences", Treatment::Choices),
    // OpenRouter: web search, stored settings with another model, and other providers at other prices.
    refused("plugins"),
    refused("preset"),
    refused("provider"),
    refused("previous_response_id"),
    // vLLM: further prompts of a completion, each with an answer of its own.
    refused("prompt_embeds"),
    refused("route"),
    field("thinking", Treatment::Thinking),
    refused("web_search_options"),
];

/// The documented fields of an endpoint.
#[must_use]
pub const fn documented(endpoint: Endpoint) -> &'static [Field] {
    match endpoint {
        Endpoint::Chat => CHAT,
        Endpoint::Completions => COMPLETIONS,
        Endpoint::Embeddings => EMBEDDINGS,
        Endpoint::Responses => RESPONSES,
        Endpoint::Messages => MESSAGES,
        Endpoint::CountTokens => COUNT_TOKENS,
        Endpoint::Models | Endpoint::Flat => &[],
    }
}

/// Names of findings that are no field of a request: their beginnings, up to the first dot.
const PARTS: [&str; 7] = ["audio", "content", "context_management", "file_id", "input", "source", "tools"];

/// Whether a configuration can allow this name. Behind a dot is a type or a value, of which providers make new ones.
#[must_use]
pub fn can_be_allowed(name: &str) -> bool {
    let root = name.split('.').next().unwrap_or_default();
    let is_refused = |field: &Field| {
        field.name == root && matches!(field.treatment, Treatment::Refused(_) | Treatment::RefusedInside(_, _))
    };
    let tables = [CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS_ELSEWHERE, ELSEWHERE];
    PARTS.contains(&root) || tables.into_iter().flatten().any(is_refused)
}

/// Further fields that bound or endanger a call at an endpoint.
pub(crate) const fn elsewhere(endpoint: Endpoint) -> &'static [Field] {
    match endpoint {
        Endpoint::Embeddings => EMBEDDINGS_ELSEWHERE,
        _ if endpoint.generates() => ELSEWHERE,
        _ => &[],
    }
}
