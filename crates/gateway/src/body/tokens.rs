//! The tokens of a body, counted with the tokenizer of the model.
//!
//! The vocabularies are large, so they are part of builds with the feature `tokenizer` only.

/// The largest body that is tokenized, in bytes. A larger one is bounded by its bytes, so that no request keeps a thread
/// for longer than about 30 ms.
pub const TOKENIZED_BYTES_MAX: usize = 512 << 10;

/// A vocabulary of OpenAI's models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// That of GPT-3.5, GPT-4 and the embeddings.
    Cl100k,
    /// That of GPT-4o and later.
    O200k,
}

impl Encoding {
    /// The encoding of a model, if it is known.
    #[must_use]
    pub fn of(model: &str) -> Option<Encoding> {
        const O200K: [&str; 8] = ["gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "chatgpt-4o", "o1", "o3", "o4-mini"];
        const CL100K: [&str; 5] = ["gpt-4", "gpt-3.5", "gpt-35", "text-embedding-3", "text-embedding-ada-002"];
        let begins_with = |names: &[&str]| names.iter().any(|name| is_version_of(model, name));
        if begins_with(&O200K) { Some(Encoding::O200k) } else { begins_with(&CL100K).then_some(Encoding::Cl100k) }
    }

    /// The tokens of a text.
    #[cfg(feature = "tokenizer")]
    fn count(self, text: &str) -> usize {
        match self {
            Encoding::Cl100k => bpe_openai::cl100k_base().count(text),
            Encoding::O200k => bpe_openai::o200k_base().count(text),
        }
    }

    /// A bound for the tokens of a text: its bytes.
    #[cfg(not(feature = "tokenizer"))]
    fn count(self, text: &str) -> usize {
        text.len()
    }
}

/// Whether a model is `name`, or `name` with a suffix: `gpt-4-turbo` is a `gpt-4`, `gpt-4x` is another model.
fn is_version_of(model: &str, name: &str) -> bool {
    model.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.', ':']))
}

/// An upper bound for the tokens of a scanned body: those of each string, of each number or literal, and one for each
/// object and list, which stands for the tokens around a message.
pub(super) fn tokens_max(encoding: Encoding, body: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(body) else { return body.len() };
    let mut tokens = 0_usize;
    let mut rest = text;
    while let Some(at) = rest.find('"') {
        let (outside, string) = rest.split_at(at);
        tokens = tokens.saturating_add(outside_strings(outside));
        let string = string.get(1..).unwrap_or_default();
        let end = string_end(string);
        let raw = string.get(..end).unwrap_or(string);
        let count = if raw.contains('\\') { encoding.count(&crate::json::decode(raw)) } else { encoding.count(raw) };
        tokens = tokens.saturating_add(count);
        rest = string.get(end.saturating_add(1)..).unwrap_or_default();
    }
    tokens.saturating_add(outside_strings(rest))
}

/// The offset of the quote that ends a string.
fn string_end(string: &str) -> usize {
    let mut at = 0_usize;
    while let Some(byte) = string.as_bytes().get(at) {
        match byte {
            b'"' => return at,
            b'\\' => at = at.saturating_add(2),
            _ => at = at.saturating_add(1),
        }
    }
    string.len()
}

/// Tokens outside strings: a byte of a number or literal is at most one.
fn outside_strings(text: &str) -> usize {
    text.bytes().filter(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'{' | b'[' | b'.' | b'-' | b'+')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_the_encoding_of_its_family() {
        for model in ["gpt-4o", "gpt-4o-mini-2024-07-18", "gpt-5.1", "o3", "o1-pro", "gpt-4.1-nano", "o4-mini"] {
            assert_eq!(Encoding::of(model), Some(Encoding::O200k), "{model}");
        }
        for model in ["gpt-4", "gpt-4-turbo", "gpt-3.5-turbo", "text-embedding-3-large", "text-embedding-ada-002"] {
            assert_eq!(Encoding::of(model), Some(Encoding::Cl100k), "{model}");
        }
        for model in ["claude-sonnet-4", "llama-3", "gpt-4x", "o10", "", "my-gpt-4o", "gpt-6"] {
            assert_eq!(Encoding::of(model), None, "{model}");
        }
    }

    #[test]
    fn every_byte_that_is_a_token_at_most_is_counted() {
        assert_eq!(outside_strings("{ \"".trim_end_matches('"')), 1);
        assert_eq!(outside_strings(":[1,-2.5e3,true]"), 1 + 1 + 6 + 4);
        assert_eq!(string_end(r#"a\"b\\" "#), 6);
        assert_eq!(string_end("abc"), 3);
        // Damaged input counts, and does not panic.
        for body in [&b"\xff\xff"[..], b"\"abc", b"\"\\", b"\"\\u12", b""] {
            let _ = tokens_max(Encoding::O200k, body);
        }
    }

    #[cfg(feature = "tokenizer")]
    #[test]
    fn the_count_is_exact_for_text_and_far_below_the_bytes() {
        assert_eq!(Encoding::O200k.count("hello world"), 2);
        assert_eq!(Encoding::Cl100k.count("hello world"), 2);
        assert_eq!(Encoding::O200k.count(&"a".repeat(1_000)), 125);
        let text = "The quick brown fox jumps over the lazy dog. ".repeat(200);
        let body = format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let tokens = tokens_max(Encoding::O200k, body.as_bytes());
        let content = Encoding::O200k.count(&text);
        assert!((content + 4..content + 20).contains(&tokens), "{content} {tokens}");
        assert!(tokens * 4 < body.len());
        // Escapes are counted as what they stand for.
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let body = format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{escaped}"}}]}}"#);
        assert_eq!(tokens_max(Encoding::O200k, body.as_bytes()), tokens);
    }
}
