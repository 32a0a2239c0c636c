use super::*;
use proptest::prelude::*;

fn check(body: &str) -> Result<(), String> {
    let read = || {
        let mut reader = Reader::new(body.as_bytes())?;
        reader.skip()?;
        reader.end()
    };
    read().map_err(|malformed: Malformed| malformed.to_string())
}

#[test]
fn valid_documents_are_read() {
    for body in [
        "{}",
        "[]",
        " { } ",
        r#"{"a":1,"b":[true,false,null,"x"]}"#,
        "-0.5e+10",
        "0",
        r#""\u00e9\n\ud83d\ude00""#,
        "[[],{}]",
        r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#,
    ] {
        assert_eq!(check(body), Ok(()), "{body}");
    }
}

#[test]
fn documents_that_parsers_disagree_about_are_refused() {
    let refused = |body: &str, what: &str| {
        let error = check(body).expect_err(body);
        assert!(error.contains(what), "{body}: {error}");
    };
    refused("", "the body ends");
    refused("{", "expected a string");
    refused("{]", "expected a string");
    refused("[1 2]", "expected a comma");
    refused("[1,]", "expected a value");
    refused(r#"{"a":1,}"#, "expected a string");
    refused("{'a':1}", "expected a string");
    refused("{a:1}", "expected a string");
    refused(r#"{"a" 1}"#, "expected a colon");
    refused("// comment\n1", "expected a value");
    refused("01", "begins with 0");
    refused("1.", "expected a digit");
    refused("-", "expected a digit");
    refused("+1", "expected a value");
    refused(".5", "expected a value");
    refused("NaN", "expected a value");
    refused("nul", "expected a value");
    refused("1 2", "expected the end");
    refused("\u{feff}{}", "expected a value");
    refused("\"a\nb\"", "control character");
    refused(r#""\x""#, "unknown escape");
    refused(r#""\u12g4""#, "four hexadecimal digits");
    refused(r#""\u+123""#, "four hexadecimal digits");
    refused("\"abc", "inside a string");
    refused(r#"{"\ud800":1}"#, "surrogate");
    refused(r#"{"a\u0000":1}"#, "NUL");
    refused(&format!(r#"{{"{}":1}}"#, "k".repeat(KEY_BYTES_MAX + 1)), "longer than 4,096 bytes");
}

#[test]
fn a_key_twice_is_refused_however_it_is_written() {
    for body in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":2,"\u0061":3}"#,
        r#"[{"x":{"é":1,"\u00e9":2}}]"#,
        r#"{"😀":1,"\ud83d\ude00":2}"#,
        r#"{"a/b":1,"a\/b":2}"#,
    ] {
        assert!(check(body).expect_err(body).contains("the same key twice"), "{body}");
    }
}

#[test]
fn nesting_and_open_keys_are_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(check(&nested(DEPTH_MAX)), Ok(()));
    assert!(check(&nested(DEPTH_MAX + 1)).expect_err("too deep").contains("128 levels"));
    assert!(check(&"[".repeat(1_000_000)).expect_err("too deep").contains("128 levels"));
    let object = |keys: usize| {
        let members: Vec<String> = (0..keys).map(|key| format!("\"{key}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(check(&object(OPEN_KEYS_MAX)), Ok(()));
    assert!(check(&object(OPEN_KEYS_MAX + 1)).expect_err("too many").contains("65,536 keys"));
}

#[test]
fn keys_are_folded_like_the_loosest_parsers_do() {
    assert_eq!(fold("Max_Tokens"), "max_tokens");
    assert_eq!(fold("meſſages"), "messages");
    assert_eq!(fold("max_to\u{212A}ens"), "max_tokens");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_panic_the_reader(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(mut reader) = Reader::new(&body) {
            let _ = reader.skip();
        }
    }

    #[test]
    fn almost_json_never_panics_and_agrees_with_serde(body in r#"[\[\]{}:,"a1\\u0de8. \-tn]{0,40}"#) {
        // Serde reads everything that this reader reads. The other way round keys twice and lone surrogates differ.
        if check(&body).is_ok() {
            prop_assert!(serde_json::from_str::<&serde_json::value::RawValue>(&body).is_ok(), "{}", body);
        }
    }

    #[test]
    fn strings_are_decoded_like_serde_does(text in any::<String>()) {
        let written = serde_json::to_string(&text).unwrap();
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        for body in [written, format!("\"{escaped}\"")] {
            let mut reader = Reader::new(body.as_bytes()).unwrap();
            prop_assert_eq!(&*reader.string().unwrap().decode().unwrap(), text.as_str());
        }
    }
}
