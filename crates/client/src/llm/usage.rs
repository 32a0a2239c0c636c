//! What a provider says that a call used.

use serde_json::Value;

/// What a provider says that a call used, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The prompt, what came from a cache included.
    pub input: u64,
    /// The answer, what was only thought included.
    pub output: u64,
    pub(super) total: u64,
}

impl Usage {
    /// Input and output together, or the total of the provider if that is more.
    #[must_use]
    pub fn total(self) -> u64 {
        self.total.max(self.input.saturating_add(self.output))
    }

    /// The usage in the answer of a provider, in the form of `OpenAI` or of Anthropic; none if it does not say. The block
    /// itself is taken too. For the events of a stream there is [`UsageMeter`].
    #[must_use]
    pub fn in_answer(answer: &Value) -> Option<Usage> {
        let block = answer.get("usage").unwrap_or(answer);
        let (input, output, total) = (input(block)?, output(block), field(block, "total_tokens"));
        // Embeddings have no output, and say so by leaving it out.
        let output = output.or_else(|| total?.checked_sub(input))?;
        Some(Usage { input, output, total: total.unwrap_or(0) })
    }
}

fn field(block: &Value, name: &str) -> Option<u64> {
    block.get(name)?.as_u64()
}

/// What was read, from a cache or not. Anthropic counts what came from a cache beside the rest.
fn input(block: &Value) -> Option<u64> {
    if let Some(prompt) = field(block, "prompt_tokens") {
        return Some(prompt);
    }
    let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"];
    let cached = cached.iter().filter_map(|name| field(block, name));
    cached.fold(field(block, "input_tokens"), |sum, part| Some(sum?.saturating_add(part)))
}

fn output(block: &Value) -> Option<u64> {
    field(block, "completion_tokens").or_else(|| field(block, "output_tokens"))
}

/// Puts the usage of a streamed answer together from its events.
///
/// A stream that is cut off has said no usage, even if it has begun to: what it would have said is more.
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
pub struct UsageMeter {
    input: Option<u64>,
    output: Option<u64>,
    total: u64,
}

impl UsageMeter {
    /// Takes note of an event of the stream.
    pub fn see(&mut self, event: &Value) {
        let inside = |name: &str| event.get(name).and_then(|inner| inner.get("usage"));
        let block = event.get("usage").or_else(|| inside("message")).or_else(|| inside("response"));
        let Some(block) = block.filter(|block| block.is_object()) else { return };
        self.input = input(block).or(self.input);
        // What Anthropic says at the start of an answer is how long it is then.
        let is_start = event.get("type").and_then(Value::as_str) == Some("message_start");
        if !is_start {
            self.output = output(block).or(self.output);
        }
        self.total = field(block, "total_tokens").unwrap_or(self.total);
    }

    /// The usage, if the stream has said all of it.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        Some(Usage { input: self.input?, output: self.output?, total: self.total })
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
                "a total of more",
                json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 9}),
                Some((1, 1, 9)),
            ),
            (
                "nothing used",
                json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
                Some((0, 0, 0)),
            ),
            ("nothing used", json!({"input_tokens": 0, "output_tokens": 0}), Some((0, 0, 0))),
            ("nothing said", json!(null), None),
            ("nothing said", json!({}), None),
            ("half of it", json!({"input_tokens": 3}), None),
            ("half of it", json!({"output_tokens": 3}), None),
            ("no numbers", json!({"prompt_tokens": "3", "completion_tokens": -1}), None),
            ("no numbers", json!({"input_tokens": 3.5, "output_tokens": 1}), None),
        ] {
            for answer in [json!({"id": "x", "usage": block}), block] {
                let found = Usage::in_answer(&answer);
                let found = found.map(|usage| (usage.input, usage.output, usage.total()));
                assert_eq!(found, expected, "{what}: {answer}");
            }
        }
    }

    fn metered(events: &[Value]) -> Option<u64> {
        let mut meter = UsageMeter::default();
        events.iter().for_each(|event| meter.see(event));
        meter.usage().map(Usage::total)
    }

    #[test]
    fn streams_say_their_usage_in_events() {
        let chunk = json!({"choices": [{"delta": {"content": "a"}}], "usage": null});
        let last =
            json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}});
        assert_eq!(metered(&[chunk.clone(), last]), Some(10));
        assert_eq!(metered(&[chunk]), None);

        let start =
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}});
        let text = json!({"type": "content_block_delta", "delta": {"text": "a"}});
        let delta = |tokens: u64| json!({"type": "message_delta", "usage": {"output_tokens": tokens}});
        assert_eq!(metered(&[start.clone(), text.clone(), delta(5), delta(15)]), Some(40));
        assert_eq!(metered(&[start.clone(), text]), None, "it was cut off");
        assert_eq!(metered(&[start, delta(0)]), Some(25));

        let done = json!({"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 2}}});
        assert_eq!(metered(&[done]), Some(3));
    }
}
