//! Scans, bounds and splices of whole bodies.

mod table;
mod transparency;

use bytes::Bytes;

use super::*;

/// Rules that bound everything that can be bounded.
fn rules() -> ModelRules {
    ModelRules {
        max_input_tokens: Some(100_000),
        max_output_tokens: Some(1_000),
        max_media_tokens: Some(2_000),
        ..ModelRules::default()
    }
}

fn bound(endpoint: Endpoint, body: &str, rules: &ModelRules) -> Result<Bound, BodyRefusal> {
    CallBody::scan(endpoint, body.as_bytes())?.bound(body.as_bytes(), rules)
}

#[track_caller]
fn check_output(endpoint: Endpoint, body: &str, output: u32, inserted: Option<(&'static str, u32)>) {
    let bound = bound(endpoint, body, &rules()).unwrap();
    let inserted = inserted.map(|(field, tokens)| InsertedCap { field, tokens });
    assert_eq!((bound.output_tokens_max, bound.inserted_cap), (output, inserted), "{body}");
}

#[track_caller]
fn check_refused(endpoint: Endpoint, body: &str, message: &str) {
    let refusal = bound(endpoint, body, &rules()).expect_err(body);
    assert!(refusal.to_string().contains(message), "{body}: {refusal}");
}

#[track_caller]
fn check_sent(endpoint: Endpoint, body: &str, sent: &str) {
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    let call = CallBody::scan(endpoint, &bytes).unwrap();
    let bound = call.bound(&bytes, &rules()).unwrap();
    assert_eq!(call.splices(&bound, "up").apply(&bytes), sent, "{body}");
}

#[test]
fn the_largest_cap_times_the_answers_bounds_the_output() {
    let chat = |body, output, inserted| check_output(Endpoint::Chat, body, output, inserted);
    chat(r#"{"model":"m","max_tokens":7}"#, 7, None);
    chat(r#"{"model":"m","max_tokens":7,"max_completion_tokens":9}"#, 9, None);
    chat(r#"{"model":"m","max_tokens":7,"n":3}"#, 21, None);
    chat(r#"{"model":"m","max_tokens":7,"n":3,"best_of":5}"#, 35, None);
    chat(r#"{"model":"m","max_tokens":7,"n":null}"#, 7, None);
    chat(r#"{"model":"m","max_tokens":7,"n":0}"#, 7, None);
    // llama.cpp lets `n_predict` override `max_tokens`.
    chat(r#"{"model":"m","max_tokens":7,"n_predict":5000}"#, 5_000, None);
    chat(r#"{"model":"m","max_tokens":7,"prediction":{"type":"content","content":"abc"}}"#, 7 + 34, None);
    let messages = |body, output| check_output(Endpoint::Messages, body, output, None);
    messages(r#"{"model":"m","max_tokens":7,"thinking":{"type":"enabled","budget_tokens":20}}"#, 20);
    messages(r#"{"model":"m","max_tokens":7,"thinking":{"type":"disabled"}}"#, 7);
    messages(r#"{"model":"m","max_tokens":0}"#, 0);
    check_output(Endpoint::Responses, r#"{"model":"m","max_output_tokens":7}"#, 7, None);
}

#[test]
fn every_prompt_of_a_list_has_an_answer_of_its_own() {
    let check = |prompt: &str, output| {
        let body = format!(r#"{{"model":"m","max_tokens":10,"n":2,"prompt":{prompt}}}"#);
        check_output(Endpoint::Completions, &body, output, None);
    };
    check(r#""a""#, 20);
    check("null", 20);
    check("[]", 20);
    check("[1,2,3]", 20);
    check(r#"["a","b","c"]"#, 60);
    check("[[1,2],[3]]", 40);
    check(r#"[1,"a"]"#, 40);
}

#[test]
fn a_missing_cap_is_inserted_in_the_field_that_the_upstream_obeys() {
    check_output(Endpoint::Chat, r#"{"model":"m"}"#, 1_000, Some(("max_completion_tokens", 1_000)));
    check_output(Endpoint::Chat, r#"{"model":"m","max_tokens":null}"#, 1_000, Some(("max_completion_tokens", 1_000)));
    check_output(Endpoint::Completions, r#"{"model":"m"}"#, 1_000, Some(("max_tokens", 1_000)));
    check_output(Endpoint::Responses, r#"{"model":"m"}"#, 1_000, Some(("max_output_tokens", 1_000)));
    check_output(Endpoint::Messages, r#"{"model":"m"}"#, 1_000, Some(("max_tokens", 1_000)));
    check_output(Endpoint::Embeddings, r#"{"model":"m","input":"x"}"#, 0, None);
    let none = ModelRules { max_output_tokens: None, ..rules() };
    let refusal = bound(Endpoint::Chat, r#"{"model":"m"}"#, &none).unwrap_err();
    assert_eq!(refusal.to_string(), "max_completion_tokens is required: this model has no configured maximum");
    assert_eq!(refusal.field(), Some("max_completion_tokens"));
}

#[test]
fn a_cap_that_the_upstream_ignores_bounds_nothing_so_the_one_that_it_obeys_is_inserted() {
    let old = ModelRules { cap_field: CapField::MaxTokens, ..rules() };
    let inserted = |body| bound(Endpoint::Chat, body, &old).unwrap().inserted_cap;
    let cap = |tokens| Some(InsertedCap { field: "max_tokens", tokens });
    assert_eq!(inserted(r#"{"model":"m","max_completion_tokens":5}"#), cap(5));
    assert_eq!(inserted(r#"{"model":"m","max_tokens":5}"#), None);
    // Without a configured maximum the client's own cap is enough.
    let none = ModelRules { max_output_tokens: None, ..old.clone() };
    let body = r#"{"model":"m","max_completion_tokens":5}"#;
    assert_eq!(bound(Endpoint::Chat, body, &none).unwrap().inserted_cap, cap(5));
    check_output(Endpoint::Chat, r#"{"model":"m","max_output_tokens":5}"#, 5, Some(("max_completion_tokens", 5)));
    check_output(
        Endpoint::Chat,
        r#"{"model":"m","thinking":{"budget_tokens":5}}"#,
        1_000,
        Some(("max_completion_tokens", 1_000)),
    );
}

#[test]
fn a_cap_of_0_that_some_servers_read_as_no_cap_costs_the_configured_maximum() {
    check_output(Endpoint::Chat, r#"{"model":"m","max_tokens":0}"#, 1_000, None);
    check_output(Endpoint::Chat, r#"{"model":"m","max_tokens":0,"max_completion_tokens":2000}"#, 2_000, None);
    let none = ModelRules { max_output_tokens: None, ..rules() };
    assert!(bound(Endpoint::Chat, r#"{"model":"m","max_tokens":0}"#, &none).is_err());
}

#[test]
fn numbers_and_flags_must_be_what_every_server_reads_alike() {
    for value in ["-1", "1.0", "1e3", "\"7\"", "true", "[7]", "4294967296", "99999999999999999999999"] {
        check_refused(Endpoint::Chat, &format!(r#"{{"model":"m","max_tokens":{value}}}"#), "max_tokens: found");
        check_refused(Endpoint::Chat, &format!(r#"{{"model":"m","n":{value}}}"#), "n: found");
    }
    for value in ["\"true\"", "1", "{}"] {
        check_refused(Endpoint::Chat, &format!(r#"{{"model":"m","stream":{value}}}"#), "stream: found");
    }
    check_refused(Endpoint::Chat, r#"{"model":"m","stream_options":true}"#, "stream_options: found true or false");
    check_refused(Endpoint::Chat, r#"{"model":"m","stream_options":{"include_usage":1}}"#, "include_usage: found");
    check_refused(Endpoint::Chat, r#"{"model":"m","max_tokens":4294967295,"n":2}"#, "more than 4294967295 output");
    check_refused(Endpoint::Chat, r#"{"messages":[]}"#, "model is required");
    for model in ["null", "7", "\"\"", "\"\\u0000\"", "\"\\ud800\""] {
        check_refused(Endpoint::Chat, &format!(r#"{{"model":{model}}}"#), "model: found");
    }
}

#[test]
fn a_body_that_two_parsers_may_read_differently_is_refused() {
    check_refused(Endpoint::Chat, r#"{"model":"a","model":"b"}"#, "the same key twice");
    check_refused(Endpoint::Chat, r#"{"model":"a","mod\u0065l":"b"}"#, "the same key twice");
    check_refused(Endpoint::Chat, r#"{"model":"a","Model":"b"}"#, r#"found the key "Model", allowed is "model""#);
    check_refused(Endpoint::Chat, r#"{"model":"a","MAX_TOKENS":9}"#, "MAX_TOKENS");
    check_refused(Endpoint::Chat, r#"{"model":"a","meſſages":[]}"#, "messages");
    check_refused(Endpoint::Chat, r#"{"model":"a","N_predict":9}"#, "n_predict");
    check_refused(Endpoint::Chat, r#"{"model":"a","stream_options":{"Include_usage":true}}"#, "include_usage");
    check_refused(Endpoint::Chat, r#"{"model":"a","messages":[{"Content":[]}]}"#, "content");
    check_refused(Endpoint::Chat, r#"{"model":"a","messages":[{"content":[{"Type":"image_url"}]}]}"#, "type");
    check_refused(Endpoint::Messages, r#"{"model":"a","thinking":{"Budget_tokens":9}}"#, "budget_tokens");
    check_refused(Endpoint::Chat, r#"[{"model":"a"}]"#, "expected an object");
    check_refused(Endpoint::Chat, r#"{"model":"a"} x"#, "expected the end");
    check_refused(Endpoint::Chat, "\u{feff}{\"model\":\"a\"}", "byte 0");
    assert!(CallBody::scan(Endpoint::Chat, b"{\"model\":\"\xff\"}").is_err());
}

#[test]
fn the_input_is_bounded_by_bytes_overhead_and_context() {
    let input = |body: &str, rules: &ModelRules| bound(Endpoint::Chat, body, rules).unwrap().input_tokens_max;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(input(body, &rules()), u32::try_from(body.len()).unwrap() + INPUT_OVERHEAD_TOKENS);
    assert_eq!(input(body, &ModelRules { input_overhead_tokens: 0, ..rules() }), u32::try_from(body.len()).unwrap());
    assert_eq!(input(body, &ModelRules { max_input_tokens: Some(100), ..rules() }), 100);
    let count = bound(Endpoint::CountTokens, r#"{"model":"m","messages":[]}"#, &rules()).unwrap();
    assert_eq!((count.input_tokens_max, count.output_tokens_max, count.inserted_cap), (0, 0, None));
}

#[test]
fn an_estimate_by_tokenizer_is_never_above_the_bytes() {
    assert_eq!("bytes".parse(), Ok(Estimate::Bytes));
    assert_eq!("tokenizer".parse::<Estimate>().is_ok(), Estimate::HAS_TOKENIZER);
    assert!("words".parse::<Estimate>().unwrap_err().contains("found \"words\""));
    let estimate = Estimate::Tokenizer(None);
    let known = ModelRules { estimate: estimate.for_model("gpt-4o-mini"), ..rules() };
    let unknown = ModelRules { estimate: estimate.for_model("claude-x"), ..rules() };
    assert_eq!(known.estimate, Estimate::Tokenizer(Some(Encoding::O200k)));
    assert_eq!(unknown.estimate, Estimate::Tokenizer(None));
    let input = |body: &str, rules: &ModelRules| bound(Endpoint::Chat, body, rules).unwrap().input_tokens_max;
    let text = r#"{"model":"m","messages":[{"role":"user","content":"hello hello hello hello hello"}]}"#;
    assert_eq!(input(text, &unknown), input(text, &rules()));
    assert!(input(text, &known) < input(text, &rules()));
    // Bodies with media, and large ones, are bounded by their bytes.
    let image = r#"{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
    assert_eq!(input(image, &known), input(image, &rules()));
    let large = format!(r#"{{"model":"m","x":"{}"}}"#, "hello ".repeat(TOKENIZED_BYTES_MAX / 6));
    assert_eq!(input(&large, &known), input(&large, &rules()));
}

#[test]
fn media_cost_a_configured_maximum_each_instead_of_their_bytes() {
    let data = "A".repeat(5_000);
    let check = |endpoint, body: &str, media: u32, media_bytes: usize| {
        let bounded = bound(endpoint, body, &rules()).unwrap();
        let text = u32::try_from(body.len() - media_bytes).unwrap();
        assert_eq!(bounded.input_tokens_max, text + INPUT_OVERHEAD_TOKENS + media * 2_000, "{body:.200}");
        let none = ModelRules { max_media_tokens: None, ..rules() };
        let refusal = bound(endpoint, body, &none).err().map(|refusal| refusal.to_string());
        assert_eq!(refusal.is_some_and(|text| text.contains("takes no images or files")), media > 0, "{body:.200}");
    };
    let chat = |part: &str, media, bytes| {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
        check(Endpoint::Chat, &body, media, bytes);
    };
    chat(&format!(r#"{{"type":"image_url","image_url":{{"url":"{data}","detail":"low"}}}}"#), 1, 5_000);
    chat(&format!(r#"{{"image_url":"{data}"}}"#), 1, 5_000);
    chat(&format!(r#"{{"type":"file","file":{{"file_data":"{data}","filename":"x"}}}}"#), 1, 5_000);
    chat(r#"{"type":"image_url"},{"type":"text","text":"x"}"#, 1, 0);
    chat(r#"{"type":"text","text":"x","image_url":null}"#, 0, 0);
    let messages = |part: &str, media, bytes| {
        let body = format!(r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":[{part}]}}]}}"#);
        check(Endpoint::Messages, &body, media, bytes);
    };
    messages(&format!(r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}"#), 1, 5_000);
    messages(r#"{"type":"document","source":{"url":"http://a","type":"url"}}"#, 1, 8);
    messages(r#"{"type":"document","source":{"type":"text","data":"plain"}}"#, 0, 0);
    let inner = r#"{"type":"image","source":{"type":"url","url":"http://a"}}"#;
    messages(&format!(r#"{{"type":"tool_result","content":[{inner},{inner}]}}"#), 2, 16);
    messages(&format!(r#"{{"type":"document","source":{{"type":"content","content":[{inner}]}}}}"#), 1, 8);
    // The input of a tool is the model's own text, whatever it looks like.
    messages(&format!(r#"{{"type":"tool_use","input":{{"content":[{inner}],"file_id":"f"}}}}"#), 0, 0);
    let item = format!(r#"{{"role":"user","content":[{{"type":"input_image","image_url":"{data}"}}]}}"#);
    check(Endpoint::Responses, &format!(r#"{{"model":"m","input":[{item}]}}"#), 1, 5_000);
    let output = r#"{"type":"function_call_output","output":[{"type":"input_image","image_url":"http://a"}]}"#;
    check(Endpoint::Responses, &format!(r#"{{"model":"m","input":[{output}]}}"#), 1, 8);
}

#[test]
fn stored_state_and_unbounded_contents_are_refused_by_name() {
    let content = |endpoint, part: &str, name: &str| {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
        check_refused(endpoint, &body, &format!("an operator may allow {name:?}"));
    };
    content(Endpoint::Chat, r#"{"type":"file","file":{"file_id":"f"}}"#, "file_id");
    content(Endpoint::Chat, r#"{"type":"input_audio","input_audio":{"data":"x"}}"#, "audio");
    content(Endpoint::Messages, r#"{"type":"image","source":{"type":"file","file_id":"f"}}"#, "file_id");
    content(Endpoint::Messages, r#"{"type":"container_upload","file_id":"f"}"#, "file_id");
    content(Endpoint::Messages, r#"{"type":"web_search_tool_result","content":[]}"#, "content.web_search_tool_result");
    content(Endpoint::Messages, r#"{"type":"document","source":{"type":"new"}}"#, "source.new");
    let audio = r#"{"model":"m","messages":[{"role":"assistant","audio":{"id":"a"}}]}"#;
    check_refused(Endpoint::Chat, audio, "\"audio\"");
    let item = |item: &str, name: &str| {
        let body = format!(r#"{{"model":"m","input":[{item}]}}"#);
        check_refused(Endpoint::Responses, &body, &format!("an operator may allow {name:?}"));
    };
    item(r#"{"type":"item_reference","id":"msg_1"}"#, "input.item_reference");
    item(r#"{"id":"msg_1"}"#, "input.item_reference");
    item(r#"{"type":"reasoning","id":"rs_1","summary":[]}"#, "input.reasoning");
    item(r#"{"type":"image_generation_call","id":"ig_1"}"#, "input.image_generation_call");
    item(r#"{"role":"user","content":[{"type":"input_file","file_id":"f"}]}"#, "file_id");
    let allowed = r#"{"model":"m","input":[
        {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"},
        {"role":"user","content":"hi"},{"type":"function_call","arguments":"{}"},
        {"type":"function_call_output","output":"x"}]}"#;
    assert!(bound(Endpoint::Responses, allowed, &rules()).is_ok());
}

#[test]
fn tools_that_the_provider_executes_are_refused_by_name() {
    let check = |endpoint, kind: &str, name: Option<&str>| {
        let body = format!(r#"{{"model":"m","tools":[{{"name":"x",{kind}"parameters":{{"type":"web_search"}}}}]}}"#);
        match name {
            Some(name) => check_refused(endpoint, &body, &format!("an operator may allow {name:?}")),
            None => drop(bound(endpoint, &body, &rules()).unwrap()),
        }
    };
    check(Endpoint::Chat, r#""type":"function","#, None);
    check(Endpoint::Responses, r#""type":"custom","#, None);
    check(Endpoint::Messages, "", None);
    check(Endpoint::Messages, r#""type":null,"#, None);
    check(Endpoint::Responses, r#""type":"web_search","#, Some("tools.web_search"));
    check(Endpoint::Responses, r#""type":"mcp","#, Some("tools.mcp"));
    check(Endpoint::Messages, r#""type":"code_execution_20250825","#, Some("tools.code_execution_20250825"));
    check_refused(Endpoint::Chat, r#"{"model":"m","tools":{"type":"web_search"}}"#, "tools: found an object");
    check_refused(Endpoint::Chat, r#"{"model":"m","tools":[{"type":7}]}"#, "tools.type: found a number");
}

#[test]
fn an_operator_allows_by_name_with_a_bound_and_a_fee() {
    let allowance = Allowance { max_input_tokens: 1_000, max_output_tokens: 50, fee_output_tokens: 7 };
    let mut rules = rules();
    rules.allow.insert("tools.web_search".to_owned(), allowance);
    let body = r#"{"model":"m","max_output_tokens":10,"tools":[{"type":"web_search"},{"type":"web_search"}]}"#;
    let bounded = bound(Endpoint::Responses, body, &rules).unwrap();
    assert_eq!(bounded.input_tokens_max, u32::try_from(body.len()).unwrap() + INPUT_OVERHEAD_TOKENS + 2_000);
    assert_eq!((bounded.output_tokens_max, bounded.fee_output_tokens), (10 + 100 + 14, 14));
}

#[test]
fn the_number_of_different_findings_is_bounded() {
    let tools: Vec<String> = (0..100).map(|tool| format!(r#"{{"type":"t{tool}"}}"#)).collect();
    let body = format!(r#"{{"model":"m","tools":[{}]}}"#, tools.join(","));
    let refusal = CallBody::scan(Endpoint::Chat, body.as_bytes()).unwrap_err();
    assert!(refusal.to_string().contains("tools.t32"), "{refusal}");
}

#[test]
fn the_user_is_read_where_each_api_has_it() {
    let user = |endpoint, body: &str| CallBody::scan(endpoint, body.as_bytes()).unwrap().user;
    let some = |user: &str| Some(user.to_owned());
    assert_eq!(user(Endpoint::Chat, r#"{"model":"m","user":"u\u0031"}"#), some("u1"));
    assert_eq!(user(Endpoint::Chat, r#"{"model":"m","safety_identifier":"s"}"#), some("s"));
    assert_eq!(user(Endpoint::Responses, r#"{"model":"m","safety_identifier":"s","user":"u"}"#), some("u"));
    assert_eq!(user(Endpoint::Messages, r#"{"model":"m","metadata":{"user_id":"u"}}"#), some("u"));
    assert_eq!(user(Endpoint::Messages, r#"{"model":"m","user":"u"}"#), None);
    assert_eq!(user(Endpoint::Chat, r#"{"model":"m","metadata":{"user_id":"u"}}"#), None);
    for value in ["7", "null", "\"\"", "\"a\\nb\"", "\"\\ud800\""] {
        assert_eq!(user(Endpoint::Chat, &format!(r#"{{"model":"m","user":{value}}}"#)), None, "{value}");
    }
    assert_eq!(user(Endpoint::Chat, &format!(r#"{{"model":"m","user":"{}"}}"#, "x".repeat(257))), None);
}

#[test]
fn splices_leave_all_other_bytes_as_they_came() {
    let chat = |body: &str, sent: &str| check_sent(Endpoint::Chat, body, sent);
    chat(r#" {"model" : "up" , "max_tokens":1} "#, r#" {"model" : "up" , "max_tokens":1} "#);
    chat(r#"{ "model":"m","max_tokens":1}"#, r#"{ "model":"up","max_tokens":1}"#);
    chat(r#"{"model":"m"}"#, r#"{"max_completion_tokens":1000,"model":"up"}"#);
    chat(r#"{"max_completion_tokens": null ,"model":"m"}"#, r#"{"max_completion_tokens": 1000 ,"model":"up"}"#);
    // Another null stays, because OpenAI reads it as absent.
    chat(r#"{"max_tokens":null,"model":"up"}"#, r#"{"max_completion_tokens":1000,"max_tokens":null,"model":"up"}"#);
    chat(
        r#"{"model":"up","max_tokens":1,"stream":true}"#,
        r#"{"stream_options":{"include_usage":true},"model":"up","max_tokens":1,"stream":true}"#,
    );
    let streamed = |options: &str, sent: &str| {
        let body =
            |options: &str| format!(r#"{{"model":"up","max_tokens":1,"stream":true,"stream_options":{options}}}"#);
        chat(&body(options), &body(sent));
    };
    streamed("null", r#"{"include_usage":true}"#);
    streamed("{}", r#"{"include_usage":true}"#);
    streamed("{ }", r#"{"include_usage":true }"#);
    streamed(r#"{ "x":1}"#, r#"{"include_usage":true, "x":1}"#);
    streamed(r#"{"include_usage":false}"#, r#"{"include_usage":true}"#);
    streamed(r#"{"include_usage": null}"#, r#"{"include_usage": true}"#);
    streamed(r#"{"include_usage":true}"#, r#"{"include_usage":true}"#);
    // Responses and messages always report their usage.
    let responses = r#"{"model":"up","max_output_tokens":1,"stream":true}"#;
    check_sent(Endpoint::Responses, responses, responses);
    let messages = r#"{"model":"up","max_tokens":1,"stream":true}"#;
    check_sent(Endpoint::Messages, messages, messages);
}

#[test]
fn the_usage_chunk_is_removed_only_if_the_client_did_not_ask_for_it() {
    let removes = |endpoint, body: &str| CallBody::scan(endpoint, body.as_bytes()).unwrap().removes_usage_chunk();
    assert!(removes(Endpoint::Chat, r#"{"model":"m","stream":true}"#));
    assert!(removes(Endpoint::Chat, r#"{"model":"m","stream":true,"stream_options":{"include_usage":false}}"#));
    assert!(!removes(Endpoint::Chat, r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#));
    assert!(!removes(Endpoint::Chat, r#"{"model":"m"}"#));
    assert!(!removes(Endpoint::Messages, r#"{"model":"m","stream":true}"#));
}

#[test]
fn a_name_of_a_model_is_escaped_where_it_is_inserted() {
    let body = Bytes::from_static(br#"{"model":"m","max_tokens":1}"#);
    let call = CallBody::scan(Endpoint::Chat, &body).unwrap();
    let bound = call.bound(&body, &rules()).unwrap();
    assert_eq!(call.splices(&bound, "a\"b").apply(&body), r#"{"model":"a\"b","max_tokens":1}"#);
}

#[test]
fn the_deepest_content_needs_little_stack() {
    let depth = 60;
    let open = r#"{"type":"tool_result","content":["#.repeat(depth);
    let body = format!(r#"{{"model":"m","max_tokens":1,"messages":[{{"content":[{open}{}]}}]}}"#, "]}".repeat(depth));
    let scan = move || CallBody::scan(Endpoint::Messages, body.as_bytes()).map(|call| call.media);
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(scan).unwrap();
    assert_eq!(thread.join().unwrap(), Ok(0));
}
