//! Random bodies, answers and streams pass through a running gateway byte for byte.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::fixture::Running;
use crate::upstream::{Step, stream_end, stream_head, whole};

/// Requests of each kind.
const CASES: u64 = 100;
/// The name of the model is the same at the client and at the upstream, so that nothing is spliced.
const MODEL: &str = "[[models]]\nname = \"same\"\ntargets = [\"one/same\"]\n";

async fn start() -> Running {
    Running::with_more(MODEL).await
}

/// Text with characters of every length in UTF-8, as JSON.
fn text(random: &mut StdRng) -> String {
    let length = random.gen_range(0..12);
    let text: String = (0..length).map(|_| random.r#gen::<char>()).collect();
    serde_json::to_string(&text).unwrap()
}

/// A value that no gateway knows, with whitespace in odd places.
fn value(random: &mut StdRng, depth: u32) -> String {
    let blank = ["", " ", "\n", "\t \r\n"][random.gen_range(0..4)];
    match random.gen_range(0..if depth == 0 { 4 } else { 6 }) {
        0 => "null".into(),
        1 => format!("{}e{}", random.r#gen::<i32>(), random.gen_range(-9..9)),
        2 => "true".into(),
        3 => text(random),
        4 => format!("[{blank}{}{blank},{}]", value(random, depth - 1), value(random, depth - 1)),
        _ => format!("{{{blank}{}:{blank}{}}}", text(random), value(random, depth - 1)),
    }
}

fn body(random: &mut StdRng, stream: bool) -> String {
    let mut members: Vec<String> =
        (0..random.gen_range(0..6)).map(|n| format!("\"x{n}\": {}", value(random, 3))).collect();
    members.push(format!("\"messages\":[{{\"role\":\"user\",\"content\":{}}}]", text(random)));
    members.insert(random.gen_range(0..members.len()), "\"max_completion_tokens\" :5, \"model\":\"same\"".into());
    if stream {
        members.push("\"stream\":true,\"stream_options\":{\"include_usage\":true}".into());
    }
    format!("{{{}}}\n", members.join(","))
}

#[tokio::test]
async fn random_bodies_and_answers_pass_byte_for_byte() {
    let gateway = start().await;
    for seed in 0..CASES {
        let mut random = StdRng::seed_from_u64(seed);
        let (asked, answered) = (body(&mut random, false), value(&mut random, 4));
        gateway.upstream.then(whole(200, "", &answered));
        let answer = gateway.chat(&asked).await;
        assert_eq!((answer.status, answer.text()), (200, answered), "seed {seed}");
        let seen = gateway.upstream.seen();
        assert_eq!(seen.last().unwrap().body, asked.as_bytes(), "seed {seed}");
    }
}

/// Frames with every line ending, comments, several lines of data, unknown events, and bytes that are no text.
fn frames(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.gen_range(1..20) {
        let end: &[u8] = [b"\n".as_slice(), b"\r\n", b"\r"][random.gen_range(0..3)];
        for _ in 0..random.gen_range(1..4) {
            match random.gen_range(0..5) {
                0 => bytes.extend_from_slice(b": comment"),
                1 => bytes.extend_from_slice(b"event:unknown"),
                2 => bytes.extend((0..random.gen_range(1..9)).map(|_| random.gen_range(0x80..=0xff_u8))),
                _ => {
                    bytes.extend_from_slice(format!("data: {}", value(random, 2).replace(['\r', '\n'], "")).as_bytes())
                }
            }
            bytes.extend_from_slice(end);
        }
        bytes.extend_from_slice(end);
    }
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    bytes
}

#[tokio::test]
async fn random_streams_pass_byte_for_byte_however_they_are_cut() {
    let gateway = start().await;
    for seed in 0..CASES {
        let mut random = StdRng::seed_from_u64(seed);
        let sent = frames(&mut random);
        let (mut steps, mut rest) = (vec![stream_head()], sent.as_slice());
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(random.gen_range(1..=rest.len().min(40)));
            steps.push(Step::Send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()));
            rest = more;
        }
        steps.push(stream_end());
        gateway.upstream.then(steps);
        let asked = body(&mut random, true);
        let answer = gateway.chat(&asked).await;
        assert!(answer.is_whole, "seed {seed}");
        assert_eq!(answer.body, sent, "seed {seed}");
        assert_eq!(gateway.upstream.seen().last().unwrap().body, asked.as_bytes(), "seed {seed}");
    }
}
