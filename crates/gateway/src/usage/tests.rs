use super::*;
use proptest::prelude::*;

fn answer(endpoint: Endpoint, body: &str) -> Option<CallUsage> {
    let whole = read(endpoint, &[body.as_bytes()]);
    for cut in 0..body.len() {
        let (first, second) = body.as_bytes().split_at(cut);
        assert_eq!(read(endpoint, &[first, second]), whole, "{body} cut at {cut}");
        assert_eq!(read(endpoint, &[first]), None, "{body} ends at {cut}");
    }
    whole
}

fn read(endpoint: Endpoint, chunks: &[&[u8]]) -> Option<CallUsage> {
    let mut reader = AnswerUsage::new(endpoint);
    for chunk in chunks {
        reader.push(chunk);
    }
    reader.usage()
}

fn tokens_of(input: u64, output: u64) -> CallUsage {
    CallUsage { input_tokens: input, output_tokens: output, ..CallUsage::default() }
}

#[test]
fn usage_is_read_from_answers_of_both_apis() {
    let chat = r#"{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":999}"}}],
        "usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30,
        "prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":2},
        "completion_tokens_details":{"reasoning_tokens":7}},"service_tier":"default"}"#;
    let expected = CallUsage {
        cached_input_tokens: Some(4),
        cache_write_tokens: Some(2),
        reasoning_tokens: Some(7),
        service_tier: Some("default".to_owned()),
        ..tokens_of(10, 20)
    };
    assert_eq!(answer(Endpoint::Chat, chat), Some(expected));
    let response = r#"{"usage": {"input_tokens":10,"output_tokens":20,"input_tokens_details":{"cached_tokens":4},
        "output_tokens_details":{"reasoning_tokens":7},"total_tokens":30},"output":[{"usage":{"output_tokens":5000}}]}"#;
    let expected = CallUsage { cached_input_tokens: Some(4), reasoning_tokens: Some(7), ..tokens_of(10, 20) };
    assert_eq!(answer(Endpoint::Responses, response), Some(expected));
    let message = r#"{"type":"message","content":[],"usage":{"input_tokens":10,"cache_creation_input_tokens":100,
        "cache_read_input_tokens":1000,"cache_creation":{"ephemeral_5m_input_tokens":60,"ephemeral_1h_input_tokens":40},
        "output_tokens":20,"output_tokens_details":{"thinking_tokens":3},"service_tier":"standard"}}"#;
    let expected = CallUsage {
        cached_input_tokens: Some(1_000),
        cache_write_tokens: Some(60),
        cache_write_1h_tokens: Some(40),
        reasoning_tokens: Some(3),
        service_tier: Some("standard".to_owned()),
        ..tokens_of(1_110, 20)
    };
    assert_eq!(answer(Endpoint::Messages, message), Some(expected));
    let embeddings = r#"{"data":[{"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    assert_eq!(answer(Endpoint::Embeddings, embeddings), Some(tokens_of(8, 0)));
    assert_eq!(answer(Endpoint::Embeddings, r#"{"usage":{"total_tokens":8}}"#), Some(tokens_of(8, 0)));
    assert_eq!(answer(Endpoint::CountTokens, r#"{"input_tokens":8}"#), Some(tokens_of(0, 0)));
}

#[test]
fn zero_is_a_usage_and_absence_is_not() {
    let chat = |usage: &str| answer(Endpoint::Chat, &format!(r#"{{"choices":[],"usage":{usage}}}"#));
    assert_eq!(chat(r#"{"prompt_tokens":0,"completion_tokens":0}"#), Some(tokens_of(0, 0)));
    for usage in ["null", "{}", "[]", "7", r#""x""#, r#"{"prompt_tokens":5}"#, r#"{"completion_tokens":5}"#] {
        assert_eq!(chat(usage), None, "{usage}");
    }
    assert_eq!(chat(r#"{"prompt_tokens":-1,"completion_tokens":5}"#), None);
    assert_eq!(answer(Endpoint::Chat, r#"{"choices":[]}"#), None);
    assert_eq!(answer(Endpoint::Chat, r#"[{"usage":{"prompt_tokens":1,"completion_tokens":1}}]"#), None);
}

#[test]
fn output_is_at_least_total_minus_input_and_parts_are_clamped_to_their_whole() {
    let chat = |usage: &str| answer(Endpoint::Chat, &format!(r#"{{"usage":{usage}}}"#)).unwrap();
    assert_eq!(chat(r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}"#), tokens_of(10, 30));
    assert_eq!(chat(r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":3}"#), tokens_of(10, 5));
    assert_eq!(chat(r#"{"prompt_tokens":10,"total_tokens":15}"#), tokens_of(10, 5));
    assert_eq!(chat(r#"{"prompt_tokens":9.5,"completion_tokens":1e1}"#), tokens_of(10, 10));
    assert_eq!(chat(r#"{"prompt_tokens":1e30,"completion_tokens":99999999999999}"#), tokens_of(TOKENS_MAX, TOKENS_MAX));
    let clamped = chat(
        r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":50},
        "completion_tokens_details":{"reasoning_tokens":50}}"#,
    );
    assert_eq!((clamped.cached_input_tokens, clamped.reasoning_tokens), (Some(10), Some(5)));
    // The same key twice: the larger value counts.
    let twice =
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":9},"usage":{"prompt_tokens":2,"completion_tokens":3}}"#;
    assert_eq!(answer(Endpoint::Chat, twice), Some(tokens_of(2, 9)));
}

#[test]
fn an_answer_of_any_size_is_read_in_little_memory() {
    let mut reader = AnswerUsage::new(Endpoint::Embeddings);
    reader.push(br#"{"data":[{"embedding":["#);
    for _ in 0..100_000 {
        reader.push(b"0.12345678,-0.87654321,");
    }
    reader.push(br#"0]}],"padding":""#);
    reader.push(&vec![b'x'; 1 << 20]);
    reader.push(br#"","usage":{"prompt_tokens":8,"total_tokens":8}}"#);
    assert_eq!(reader.usage(), Some(tokens_of(8, 0)));
    // A usage beyond the bound is ignored.
    let long = format!(r#"{{"usage":{{"prompt_tokens":8,"completion_tokens":1,"x":"{}"}}}}"#, "x".repeat(20_000));
    assert_eq!(read(Endpoint::Chat, &[long.as_bytes()]), None);
    let many = format!("{{{}}}", r#""usage":{"prompt_tokens":8},"#.repeat(100_000));
    assert_eq!(read(Endpoint::Chat, &[many.as_bytes()]), None);
}

/// The bytes for the client, the usage, and whether the stream ended, for one way to cut it.
fn pass(endpoint: Endpoint, removes: bool, chunks: &[&[u8]]) -> (Vec<u8>, Option<CallUsage>, bool) {
    let mut stream = Stream::new(endpoint, removes);
    let mut out = Vec::new();
    for chunk in chunks {
        stream.push(Bytes::copy_from_slice(chunk), |bytes| out.extend_from_slice(&bytes));
    }
    out.extend(stream.finish().unwrap_or_default());
    (out, stream.reader().usage(), stream.reader().has_ended())
}

#[track_caller]
fn check_stream(endpoint: Endpoint, removes: bool, stream: &str, sent: &str, usage: Option<CallUsage>) {
    let bytes = stream.as_bytes();
    let (out, found, _) = pass(endpoint, removes, &[bytes]);
    assert_eq!(String::from_utf8(out).unwrap(), sent);
    assert_eq!(found, usage, "{stream}");
    for cut in 0..bytes.len() {
        let (out, found, _) = pass(endpoint, removes, &[&bytes[..cut], &bytes[cut..]]);
        assert_eq!(out, sent.as_bytes(), "cut at {cut}");
        assert_eq!(found, usage, "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(pass(endpoint, removes, &single), (sent.as_bytes().to_vec(), usage, true));
}

const CHUNKS: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\n";
const USAGE_CHUNK: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20,\"total_tokens\":30}}\n\n";

#[test]
fn the_extra_chunk_with_the_usage_is_removed_unless_it_was_asked_for() {
    let stream = format!("{CHUNKS}{USAGE_CHUNK}data: [DONE]\n\n");
    let usage = Some(tokens_of(10, 20));
    check_stream(Endpoint::Chat, true, &stream, &format!("{CHUNKS}data: [DONE]\n\n"), usage.clone());
    check_stream(Endpoint::Chat, false, &stream, &stream, usage.clone());
    check_stream(Endpoint::Completions, true, &stream, &format!("{CHUNKS}data: [DONE]\n\n"), usage.clone());
    let crlf = stream.replace('\n', "\r\n");
    let sent = format!("{CHUNKS}data: [DONE]\n\n").replace('\n', "\r\n");
    let (out, found, _) = pass(Endpoint::Chat, true, &[crlf.as_bytes()]);
    assert_eq!((String::from_utf8(out).unwrap(), found), (sent, usage.clone()));
    // A chunk that has choices too is kept, and so is Azure's first one, which has neither.
    let odd = "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20}}\n\n\
        data: {\"choices\":[],\"prompt_filter_results\":[]}\n\ndata: [DONE]\n\n";
    check_stream(Endpoint::Chat, true, odd, odd, usage);
}

#[test]
fn a_stream_without_its_last_event_has_no_usage() {
    let cut = format!("{CHUNKS}{USAGE_CHUNK}");
    let (_, usage, has_ended) = pass(Endpoint::Chat, true, &[cut.as_bytes()]);
    assert_eq!((usage, has_ended), (None, false));
    // It had one so far.
    let mut stream = Stream::new(Endpoint::Chat, true);
    stream.push(Bytes::from(cut), drop);
    assert_eq!(stream.reader().so_far(), Some(tokens_of(10, 20)));
    // `[DONE]` in the text of the answer ends nothing; without its blank line it does.
    let (_, usage, _) = pass(Endpoint::Chat, true, &[USAGE_CHUNK.as_bytes(), b"data: \"[DONE]\"\n\n"]);
    assert_eq!(usage, None);
    let (_, usage, _) = pass(Endpoint::Chat, true, &[USAGE_CHUNK.as_bytes(), b"data: [DONE]"]);
    assert_eq!(usage, Some(tokens_of(10, 20)));
    let (_, usage, _) = pass(Endpoint::Chat, true, &[USAGE_CHUNK.as_bytes(), b"data: [DONE"]);
    assert_eq!(usage, None);
}

#[test]
fn a_stream_of_messages_reports_its_usage_in_parts() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\
        \"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n";
    let text = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"hi\"}}\n\n\
        event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let delta = "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":20}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let stream = [start, text, delta, stop].concat();
    let usage = CallUsage { cached_input_tokens: Some(5), ..tokens_of(15, 20) };
    check_stream(Endpoint::Messages, false, &stream, &stream, Some(usage));
    let without = |part: &str| pass(Endpoint::Messages, false, &[stream.replace(part, "").as_bytes()]).1;
    assert_eq!(without(start), None);
    assert_eq!(without(delta), None);
    assert_eq!(without(stop), None);
    assert!(without(text).is_some());
}

#[test]
fn a_stream_of_a_response_reports_its_usage_at_its_end() {
    let created = "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n";
    let end = |kind: &str| {
        format!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"response\":{{\"service_tier\":\"default\",\"output\":[\"{}\"],\
            \"usage\":{{\"input_tokens\":10,\"output_tokens\":20,\"total_tokens\":30}}}}}}\n\n",
            "x".repeat(200)
        )
    };
    let usage = CallUsage { service_tier: Some("default".to_owned()), ..tokens_of(10, 20) };
    for kind in ["response.completed", "response.incomplete", "response.failed"] {
        let stream = format!("{created}{}", end(kind));
        check_stream(Endpoint::Responses, false, &stream, &stream, Some(usage.clone()));
    }
    let (_, found, _) = pass(Endpoint::Responses, false, &[end("response.in_progress").as_bytes()]);
    assert_eq!(found, None);
    // The last event repeats the whole answer, so it may exceed the bound of a frame.
    let long = end("response.completed").replace("xxx", &"x".repeat(100_000));
    let chunks: Vec<&[u8]> = long.as_bytes().chunks(1_000).collect();
    let (out, found, _) = pass(Endpoint::Responses, false, &chunks);
    assert_eq!((out.len(), found), (long.len(), Some(usage)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_streams_come_out_as_they_went_in_and_never_panic(
        parts in proptest::collection::vec(
            prop_oneof![
                Just(CHUNKS.as_bytes().to_vec()),
                Just(USAGE_CHUNK.as_bytes().to_vec()),
                Just(b"data: [DONE]\r\n\r\n".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..40),
                "[\\[\\]{}:,\"\\\\a1 \n\r]{0,30}".prop_map(String::into_bytes),
            ],
            0..12,
        ),
        size in 1_usize..50,
    ) {
        let bytes = parts.concat();
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        for endpoint in [Endpoint::Chat, Endpoint::Messages, Endpoint::Responses] {
            let whole = pass(endpoint, false, &[&bytes]);
            prop_assert_eq!(&whole.0, &bytes);
            prop_assert_eq!(pass(endpoint, false, &chunks), whole);
        }
        prop_assert_eq!(pass(Endpoint::Chat, true, &chunks), pass(Endpoint::Chat, true, &[&bytes]));
        prop_assert_eq!(read(Endpoint::Chat, &chunks), read(Endpoint::Chat, &[&bytes]));
    }
}
