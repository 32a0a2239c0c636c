//! An upstream that answers from a script: exact bytes, delays and cuts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A step of an answer.
#[derive(Clone, Debug)]
pub enum Step {
    /// These bytes of the connection.
    Send(Vec<u8>),
    /// A pause.
    Wait(Duration),
    /// The connection is reset or closed here.
    Close,
    /// Nothing more comes, and the connection stays open.
    Hang,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers(name).next()
    }

    /// The values of a header that may be repeated.
    pub fn headers(&self, name: &str) -> impl Iterator<Item = String> {
        self.head.lines().skip(1).filter_map(move |line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Default)]
struct Script {
    answers: VecDeque<Vec<Step>>,
    default: Vec<Step>,
    seen: Vec<Seen>,
    /// The connections so far, and those that are open.
    connections: (usize, usize),
    /// Bytes that were sent to the end, of each answer.
    finished: usize,
}

/// The upstream. It stops with its runtime.
#[derive(Clone)]
pub struct Upstream {
    pub url: String,
    script: Arc<Mutex<Script>>,
}

impl Upstream {
    pub async fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script: Arc<Mutex<Script>> = Arc::default();
        let shared = Arc::clone(&script);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let script = Arc::clone(&shared);
                script.lock().unwrap().connections.0 += 1;
                script.lock().unwrap().connections.1 += 1;
                tokio::spawn(async move {
                    _ = serve(stream, &script).await;
                    script.lock().unwrap().connections.1 -= 1;
                });
            }
        });
        Upstream { url, script }
    }

    /// The next answer. Without one the default is given.
    pub fn then(&self, answer: Vec<Step>) {
        self.script.lock().unwrap().answers.push_back(answer);
    }

    /// The answer of all requests without another one.
    pub fn always(&self, answer: Vec<Step>) {
        self.script.lock().unwrap().default = answer;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.script.lock().unwrap().seen.clone()
    }

    /// The connections so far, and those that are open.
    pub fn connections(&self) -> (usize, usize) {
        self.script.lock().unwrap().connections
    }

    pub fn finished(&self) -> usize {
        self.script.lock().unwrap().finished
    }
}

async fn serve(mut stream: TcpStream, script: &Mutex<Script>) -> std::io::Result<()> {
    loop {
        let Some(seen) = request(&mut stream).await? else { return Ok(()) };
        let steps = {
            let mut script = script.lock().unwrap();
            script.seen.push(seen);
            script.answers.pop_front().unwrap_or_else(|| script.default.clone())
        };
        for step in steps {
            match step {
                Step::Send(bytes) => {
                    stream.write_all(&bytes).await?;
                    stream.flush().await?;
                }
                Step::Wait(time) => tokio::time::sleep(time).await,
                Step::Close => return Ok(()),
                Step::Hang => {
                    let mut rest = [0; 1];
                    // Until the gateway closes it.
                    _ = stream.read(&mut rest).await;
                    return Ok(());
                }
            }
        }
        script.lock().unwrap().finished += 1;
    }
}

async fn request(stream: &mut TcpStream) -> std::io::Result<Option<Seen>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        let mut piece = [0; 4_096];
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece[..read]);
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut body = bytes[end..].to_vec();
    let seen = Seen { head: head.clone(), body: Vec::new() };
    let length: usize = seen.header("content-length").map_or(0, |text| text.parse().unwrap());
    while body.len() < length {
        let mut piece = vec![0; length - body.len()];
        let read = stream.read(&mut piece).await?;
        body.extend_from_slice(&piece[..read]);
    }
    Ok(Some(Seen { head, body }))
}

/// A whole answer with a length.
pub fn whole(status: u16, headers: &str, body: &str) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    vec![Step::Send((head + body).into_bytes())]
}

/// The head of a stream.
pub fn stream_head() -> Step {
    Step::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec())
}

/// One chunk of a stream.
pub fn chunk(text: &str) -> Step {
    Step::Send(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}

/// The end of a stream.
pub fn stream_end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}

/// A stream of these frames.
pub fn stream(frames: &[&str]) -> Vec<Step> {
    let frames = frames.iter().map(|frame| chunk(frame));
    std::iter::once(stream_head()).chain(frames).chain([stream_end()]).collect()
}

/// An answer of chat completions.
pub const CHAT: &str = r#"{"id":"c1","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}"#;

/// The frames of a chat stream with usage, as OpenAI sends them.
pub const CHAT_STREAM: [&str; 5] = [
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"he\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"llo\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10}}\n\n",
    "data: [DONE]\n\n",
];

/// The frames of a stream of messages, as Anthropic sends them.
pub const MESSAGE_STREAM: [&str; 6] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"claude\",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hello\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":3}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
];
