//! The usage that a provider reports for a call.

use serde_json::Value;

/// The usage that a provider reports for a call, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The tokens of the prompt, cached ones included.
    pub input: u64,
    /// The tokens of the output, reasoning included.
    pub output: u64,
    pub(super) total: u64,
}

impl Usage {
    /// Input plus output, or the total of the provider if that is greater.
    pub fn total(self) -> u64 {
        self.total.max(self.input.saturating_add(self.output))
    }

    /// The usage in the response of a provider, in the format of `OpenAI` or Anthropic. A bare usage object is accepted
    /// too. For the events of a stream use [`UsageMeter`].
    #[must_use]
    pub fn in_answer(answer: &Value) -> Option<Usage> {
        Counts::of(answer.get("usage").unwrap_or(answer)).usage()
    }
}

/// The counts of a usage object, `None` where it has no such field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// The input, without cached tokens where the provider counts those apart.
    input: Option<u64>,
    /// Anthropic counts tokens that it wrote to its cache or read from there apart from the input.
    cache_creation: Option<u64>,
    cache_read: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
}

impl Counts {
    fn of(block: &Value) -> Counts {
        let field = |name: &str| block.get(name)?.as_u64();
        Counts {
            input: field("prompt_tokens").or_else(|| field("input_tokens")),
            cache_creation: field("cache_creation_input_tokens"),
            cache_read: field("cache_read_input_tokens"),
            output: field("completion_tokens").or_else(|| field("output_tokens")),
            total: field("total_tokens"),
        }
    }

    /// The maximum of each field. The events of a stream repeat counts that only grow, and may leave fields out.
    fn max(self, other: Counts) -> Counts {
        Counts {
            input: self.input.max(other.input),
            cache_creation: self.cache_creation.max(other.cache_creation),
            cache_read: self.cache_read.max(other.cache_read),
            output: self.output.max(other.output),
            total: self.total.max(other.total),
        }
    }

    fn usage(self) -> Option<Usage> {
        let cached = self.cache_creation.unwrap_or(0).saturating_add(self.cache_read.unwrap_or(0));
        let input = self.input?.saturating_add(cached);
        // Embeddings have a total and no output.
        let output = self.output.or_else(|| self.total?.checked_sub(input))?;
        Some(Usage { input, output, total: self.total.unwrap_or(0) })
    }
}

/// Collects the usage of a streamed response from its events.
///
/// A stream that is cut off has no usage, even if it began to report one: the final usage would be greater.
///
/// ```
/// use earmark_client::llm::UsageMeter;
/// use serde_json::json;
///
/// let mut meter = UsageMeter::default();
/// meter.see(&json!({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}));
/// assert_eq!(meter.usage(), None);
/// meter.see(&json!({"type": "message_delta", "usage": {"output_tokens": 30}}));
/// assert_eq!(meter.usage().map(|usage| usage.total()), Some(39));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageMeter(Counts);

impl UsageMeter {
    /// Adds an event of the stream.
    pub fn see(&mut self, event: &Value) {
        let inside = |name: &str| event.get(name).and_then(|inner| inner.get("usage"));
        let block = event.get("usage").or_else(|| inside("message")).or_else(|| inside("response"));
        let Some(block) = block else { return };
        let mut counts = Counts::of(block);
        // The first event of Anthropic has the output so far, which is not the usage of a stream that is cut off.
        if event.get("type").and_then(Value::as_str) == Some("message_start") {
            counts.output = None;
        }
        self.0 = self.0.max(counts);
    }

    /// The usage, once the stream has reported all of it.
    pub fn usage(&self) -> Option<Usage> {
        self.0.usage()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_blocks_of_the_providers_are_read() {
        for (what, block, expected) in [
            (
                "OpenAI, chat",
                json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
                       "prompt_tokens_details": {"cached_tokens": 4}}),
                Some((10, 5, 15)),
            ),
            (
                "OpenAI, responses",
                json!({"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                       "output_tokens_details": {"reasoning_tokens": 3}}),
                Some((10, 5, 15)),
            ),
            ("OpenAI, embeddings", json!({"prompt_tokens": 8, "total_tokens": 8}), Some((8, 0, 8))),
            (
                "Anthropic",
                json!({"input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100,
                       "output_tokens": 7}),
                Some((123, 7, 130)),
            ),
            (
                "Anthropic, no cache",
                json!({"input_tokens": 3, "cache_creation_input_tokens": null, "output_tokens": 7}),
                Some((3, 7, 10)),
            ),
            (
                "a greater total",
                json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 9}),
                Some((1, 1, 9)),
            ),
            ("a usage of 0", json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}), Some((0, 0, 0))),
            ("a usage of 0", json!({"input_tokens": 0, "output_tokens": 0}), Some((0, 0, 0))),
            ("no usage", json!(null), None),
            ("no usage", json!({}), None),
            ("half of it", json!({"input_tokens": 3}), None),
            ("half of it", json!({"output_tokens": 3}), None),
            ("no integers", json!({"prompt_tokens": "3", "completion_tokens": -1}), None),
            ("no integers", json!({"input_tokens": 3.5, "output_tokens": 1}), None),
        ] {
            for answer in [json!({"id": "x", "usage": block}), block] {
                let found = Usage::in_answer(&answer);
                let found = found.map(|usage| (usage.input, usage.output, usage.total()));
                assert_eq!(found, expected, "{what}: {answer}");
            }
        }
    }

    /// The usage of a stream that is given as in the documentation of its provider: one JSON event on each line.
    fn metered(lines: &str) -> Option<(u64, u64, u64)> {
        let mut meter = UsageMeter::default();
        for line in lines.lines() {
            meter.see(&serde_json::from_str(line.trim().trim_start_matches("data: ")).unwrap());
        }
        meter.usage().map(|usage| (usage.input, usage.output, usage.total()))
    }

    const CHAT: &str = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}
        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}],"usage":null}
        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}
        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":16,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":4,"accepted_prediction_tokens":0}}}"#;

    const RESPONSES: &str = r#"data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","output":[],"usage":null}}
        data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_1","status":"in_progress","output":[],"usage":null}}
        data: {"type":"response.output_text.delta","sequence_number":2,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hi"}
        data: {"type":"response.completed","sequence_number":3,"response":{"id":"resp_1","status":"completed","usage":{"input_tokens":37,"input_tokens_details":{"cached_tokens":32},"output_tokens":11,"output_tokens_details":{"reasoning_tokens":8},"total_tokens":48}}}"#;

    const MESSAGES: &str = r#"data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":1000,"cache_read_input_tokens":4000,"output_tokens":1}}}
        data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}
        data: {"type":"ping"}
        data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}
        data: {"type":"content_block_stop","index":0}
        data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":USAGE}
        data: {"type":"message_stop"}"#;

    fn without_last(lines: &str, count: usize) -> String {
        let lines: Vec<&str> = lines.lines().collect();
        lines[..lines.len() - count].join("\n")
    }

    #[test]
    fn streams_of_the_providers_are_metered_and_need_their_last_usage() {
        assert_eq!(metered(CHAT), Some((19, 10, 29)));
        assert_eq!(metered(&without_last(CHAT, 1)), None);
        assert_eq!(metered(RESPONSES), Some((37, 11, 48)));
        assert_eq!(metered(&without_last(RESPONSES, 1)), None);
        let messages = MESSAGES.replace("USAGE", r#"{"output_tokens":15}"#);
        assert_eq!(metered(&messages), Some((5_025, 15, 5_040)));
        assert_eq!(metered(&without_last(&messages, 2)), None);
        let nothing = messages.replace("25", "0").replace("000", "").replace("15", "0");
        assert_eq!(metered(&nothing), Some((5, 0, 5)), "an output of 0 is a usage");
    }

    /// Each event replaced the input of the one before it. A `message_delta` with `input_tokens` and no cache fields
    /// turned 5,025 tokens into 25, and the tenant paid for those.
    #[test]
    fn an_event_without_cache_fields_does_not_shrink_the_input() {
        for usage in [
            r#"{"input_tokens":25,"output_tokens":15}"#,
            r#"{"input_tokens":25,"cache_creation_input_tokens":null,"output_tokens":15}"#,
            r#"{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":15}"#,
            r#"{"input_tokens":25,"cache_creation_input_tokens":1000,"cache_read_input_tokens":4000,"output_tokens":15}"#,
        ] {
            assert_eq!(metered(&MESSAGES.replace("USAGE", usage)), Some((5_025, 15, 5_040)), "{usage}");
        }
    }

    #[test]
    fn several_events_with_usage_count_their_maximum() {
        let delta = |tokens: u64| json!({"type": "message_delta", "usage": {"output_tokens": tokens}});
        let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}});
        let mut meter = UsageMeter::default();
        [start, delta(15), delta(5)].iter().for_each(|event| meter.see(event));
        assert_eq!(meter.usage().map(Usage::total), Some(40));
        let chunk =
            |total: u64| json!({"usage": {"prompt_tokens": 4, "completion_tokens": total - 4, "total_tokens": total}});
        let mut meter = UsageMeter::default();
        [chunk(9), chunk(10), chunk(6)].iter().for_each(|event| meter.see(event));
        assert_eq!(meter.usage().map(|usage| (usage.input, usage.output, usage.total())), Some((4, 6, 10)));
    }
}
