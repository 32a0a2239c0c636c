//! A server that answers what it is told to.

use std::sync::{Arc, Mutex};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::support::proxy::message;

/// What is answered: status and body; nothing means that it hangs up.
pub type Scene = Option<(u16, String)>;

/// A server without a Book. It ends with its runtime.
pub struct Scripted {
    pub url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// Answers by what is asked: head and body.
    pub async fn by(answer: impl FnMut(&str) -> Scene + Send + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (heard, answer) = (Arc::clone(&asked), Arc::new(Mutex::new(answer)));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (heard, answer) = (Arc::clone(&heard), Arc::clone(&answer));
                tokio::spawn(async move {
                    let Ok(request) = message(&mut stream).await else { return };
                    let request = String::from_utf8(request).unwrap();
                    let scene = (*answer.lock().unwrap())(&request);
                    heard.lock().unwrap().push(request);
                    if let Some((status, body)) = scene {
                        let length = body.len();
                        let head = format!(
                            "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                        );
                        // Whoever asked may have gone.
                        _ = stream.write_all((head + &body).as_bytes()).await;
                    }
                });
            }
        });
        Scripted { url, asked }
    }

    /// Answers one request after the other, and hangs up on the rest.
    pub async fn lines(answers: Vec<Option<(u16, &'static str)>>) -> Scripted {
        let mut answers = answers.into_iter();
        Scripted::by(move |_| answers.next().flatten().map(|(status, body)| (status, body.to_owned()))).await
    }

    /// What it was asked so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}
