use proptest::prelude::*;

use super::*;
use crate::Attributes;

fn holds(condition: &str, pairs: &[(&str, &str)]) -> Result<bool, String> {
    let mut names = Names::default();
    let compiled = compile_all(&[condition], &mut names).map_err(|(_, what)| what)?;
    let attributes = Attributes::new(pairs.iter().copied()).unwrap();
    Ok(compiled[0].holds(&names.values(&attributes)))
}

#[test]
fn conditions_decide_by_attributes() {
    let call = [("provider", "openai"), ("model", "gpt-4o-mini"), ("plan", "pro"), ("user", "日本")];
    for (condition, expected) in [
        (r#"provider == "openai""#, true),
        ("provider == 'azure'", false),
        ("provider != 'azure'", true),
        ("tenant == ''", true),
        ("tenant != ''", false),
        ("model in ['gpt-4o', 'gpt-4o-mini']", true),
        ("model in []", false),
        ("!(model in ['gpt-4o'])", true),
        ("model.startsWith('gpt-4') && plan == 'pro'", true),
        ("model.endsWith('-mini') && plan == 'free'", false),
        ("model.contains('4o') || plan == 'free'", true),
        ("plan == 'free' || plan == 'team' || plan == 'pro'", true),
        ("plan == 'pro' ? model == 'x' : true", false),
        ("plan == 'free' ? model == 'x' : true", true),
        ("size(user) == 2 && user.size() < 3", true),
        ("size(user) >= 3 || size('abc') > 3 || size('') <= -1", false),
        ("plan > 'free' && plan <= 'pro'", true),
        ("(plan == 'pro') == (provider == 'openai')", true),
        ("(plan == 'pro') != true", false),
        ("!!true", true),
        ("'gpt-4o' in [model, plan]", false),
        ("user == '\\u65e5\\u672c'", true),
        ("provider\n  == 'openai'", true),
        ("model == 'a(((((((((((b'", false),
    ] {
        assert_eq!(holds(condition, &call), Ok(expected), "{condition}");
    }
}

#[test]
fn a_refused_condition_is_named_with_its_position() {
    let long = format!("user == '{}'", "x".repeat(1_024));
    let deep = format!("{}true{}", "(".repeat(9), ")".repeat(9));
    let choices = format!("{}true", "user == '' ? true : ".repeat(9));
    let chain = format!("true{}", " == true".repeat(60));
    for (condition, what) in [
        ("user ==", "at 1:8: Syntax error"),
        ("user = 'a'", "at 1:6: Syntax error"),
        ("", "at 1:1: Syntax error"),
        ("true &&\n  user == ", "at 2:11: Syntax error"),
        ("user", "at 1:1: found a text, allowed is a condition"),
        ("size(user)", "at 1:5: found a number, allowed is a condition"),
        ("true && user", "at 1:9: found a text, allowed is a condition"),
        ("user == 1", "at 1:6: found a text compared with a number"),
        ("user + 'a' == 'b'", "at 1:6: found +, allowed are"),
        ("user.name == 'b'", "at 1:5: found a field"),
        ("user in plan", "at 1:9: found a text, allowed is a list"),
        ("user in [1]", "at 1:10: found a number, allowed is a text"),
        ("{'a': user} == user", "at 1:1: found a map"),
        ("1.5 < 2.0", "at 1:1: found bytes, a fraction"),
        ("true < false", "at 1:6: found a condition compared with a condition"),
        ("User == 'a'", "at 1:1: found the name \"User\""),
        ("lower(user) == 'a'", "at 1:6: found lower"),
        ("has(user.x)", "at byte 0: found has()"),
        ("['a'].exists(x, x == user)", "at byte 6: found exists()"),
        ("user.matches('^a')", "at byte 5: found matches()"),
        ("user.matches ('^a')", "at byte 5: found matches()"),
        ("user == r'a'", "at byte 8: found r before a quote"),
        ("user == '''a'''", "at byte 8: found three quotes"),
        ("user == 'a", "at byte 8: found a string without its end"),
        ("user == 'a\n'", "at byte 8: found a line break in a string"),
        ("user == 'a' // b", "at byte 12: found a comment"),
        (&long, "found 1034 bytes, allowed are 1024"),
        (&deep, "at byte 8: found a nesting of 9, allowed are 8"),
        (&choices, "at byte 171: found a number of ? of 9, allowed are 8"),
        (&chain, "at 1:"),
    ] {
        let error = holds(condition, &[]).unwrap_err();
        assert!(error.starts_with(what) && !error.contains("expecting"), "{condition}: {error}");
    }
}

#[test]
fn attributes_that_are_named_like_macros_are_allowed() {
    assert_eq!(holds("map == 'a' && all != 'b'", &[("map", "a")]), Ok(true));
}

/// The parser recurses. On the stack of a server's thread these would end the process.
#[test]
fn the_longest_chains_are_parsed_or_refused_without_overflowing_the_stack() {
    for (unit, open, close) in [
        ("+a", "a", ""),
        ("&&a", "a", ""),
        ("==a", "a", ""),
        (" in a", "a", ""),
        (".a", "a", ""),
        (".a()", "a", ""),
        ("[a]", "a", ""),
        ("!", "", "a"),
        ("-", "", "a"),
        (",a", "[a", "]"),
        ("a ", "", ""),
        ("@#$", "", ""),
        ("(){}[]", "", ""),
        ("\\", "", ""),
    ] {
        let times = (CONDITION_BYTES_MAX - open.len() - close.len()) / unit.len();
        let condition = format!("{open}{}{close}", unit.repeat(times));
        assert!(holds(&condition, &[]).is_err(), "{unit}");
    }
    let chain = format!("true{}", "&&true".repeat(170));
    assert_eq!(holds(&chain, &[]), Ok(true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_makes_the_compiler_panic(tokens in prop::collection::vec(prop::sample::select(vec![
        "a", "b", "'x'", "\"y\"", "1", "true", "==", "!=", "<", "&&", "||", "!", "?", ":", "(", ")", "[", "]", "{", "}",
        ",", ".", "in", "size", "startsWith", "-", "+", " ", "\n", "'", "\\", "ü", "1.5", "0x", "null", "``", "//", "\u{0}",
    ]), 0..40)) {
        let _any_answer = holds(&tokens.concat(), &[("a", "x"), ("b", "y")]);
    }
}
