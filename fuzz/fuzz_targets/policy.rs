//! No document makes the parser or the evaluation of policies panic or exceed its bounds. The first bytes are the call,
//! the rest is the document.

#![no_main]

#[path = "../../crates/policy/tests/documents/oracle.rs"]
mod oracle;

use earmark_policy::{Attributes, Usage};
use libfuzzer_sys::fuzz_target;
use oracle::{Judged, judge};

/// Bytes of a call: nine numbers.
const CALL_BYTES: usize = 36;

fuzz_target!(|bytes: &[u8]| {
    let Some((numbers, text)) = bytes.split_at_checked(CALL_BYTES) else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (numbers, _) = numbers.as_chunks::<4>();
    let [input, output, more, used, made, cached, written, hour, reasoning] =
        std::array::from_fn(|place| u32::from_le_bytes(numbers[place]));
    let attributes = Attributes::new([
        ("model", "gpt-4o"),
        ("provider", "openai"),
        ("tenant", "a:%"),
        ("plan", "pro"),
        ("user", "ü"),
    ]);
    let usage = Usage {
        input_tokens: used,
        output_tokens: made,
        cached_input_tokens: cached,
        cache_write_tokens: written,
        cache_write_1h_tokens: hour,
        reasoning_tokens: reasoning,
    };
    judge(text, &Judged { attributes: attributes.expect("attributes"), bounds: (input, output), more, usage });
});
