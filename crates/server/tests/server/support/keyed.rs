//! A server with keys, and requests with them.

use std::sync::Arc;

use earmark_admission::{Keys as _, LocalBook, LocalOptions, ManualClock, Token};
use earmark_core::{CreateKey, KeyId, Principal, RevokeKey, Role};
use earmark_server::ServerOptions;

use super::client::{Answer, Wire};
use super::test_server::{START_MS, TestServer};

/// A server with keys.
pub(crate) struct KeyedServer {
    pub(crate) server: TestServer,
    pub(crate) book: Arc<LocalBook>,
    /// The key of an admin of `default`.
    pub(crate) root: String,
}

pub(crate) fn key(role: Role, namespace: &str) -> (Token, CreateKey) {
    let token = Token::random().unwrap();
    let command = CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "test".parse().unwrap(),
        role,
        namespace: namespace.parse().unwrap(),
        client: None,
        labels: earmark_core::Labels::default(),
        may_set: earmark_core::MaySet::default(),
        valid_seconds: None,
        is_first: false,
        actor: "system:test".parse().unwrap(),
    };
    (token, command)
}

impl KeyedServer {
    pub(crate) async fn open() -> KeyedServer {
        KeyedServer::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut ServerOptions)) -> KeyedServer {
        let clock = ManualClock::at(START_MS);
        let options = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
        let book = Arc::new(LocalBook::open(options).await.unwrap());
        let (token, command) = key(Role::Admin, "default");
        book.create(Principal::System, command).await.unwrap();
        let mut options = TestServer::options();
        change(&mut options);
        let server = TestServer::on(clock, Arc::<LocalBook>::clone(&book), options).await;
        KeyedServer { server, book, root: token.reveal() }
    }

    /// A new key.
    pub(crate) async fn key(&self, role: Role, namespace: &str) -> String {
        self.key_of(role, namespace, |_| {}).await
    }

    pub(crate) async fn key_of(&self, role: Role, namespace: &str, change: impl FnOnce(&mut CreateKey)) -> String {
        let (token, mut command) = key(role, namespace);
        change(&mut command);
        self.book.create(Principal::System, command).await.unwrap();
        token.reveal()
    }

    pub(crate) async fn revoke(&self, key: &str) {
        let id: KeyId = key.split('_').nth(1).unwrap().parse().unwrap();
        let command = RevokeKey { id, namespace: None, actor: "system:test".parse().unwrap() };
        self.book.revoke(Principal::System, command).await.unwrap();
    }

    /// Headers with every kind of bad credentials.
    pub(crate) async fn wrong(&self) -> Vec<Vec<(&'static str, String)>> {
        let revoked = self.key(Role::Admin, "default").await;
        let over = self.key_of(Role::Admin, "default", |key| key.valid_seconds = Some(1)).await;
        self.revoke(&revoked).await;
        self.server.clock.advance_ms(1_000);
        let good = &self.root;
        let cut = &good[..good.len() - 1];
        let last = if good.ends_with('0') { "1" } else { "0" };
        let another = self.key(Role::Admin, "default").await;
        let (id, secret) = (good.split('_').nth(1).unwrap(), another.split('_').nth(2).unwrap());
        let (foreign, _) = key(Role::Admin, "default");
        let bearer = |token: &str| vec![("authorization", format!("Bearer {token}"))];
        let says = |value: String| vec![("authorization", value)];
        vec![
            Vec::new(),
            bearer(&revoked),
            bearer(&over),
            bearer(cut),
            bearer(&format!("{cut}{last}")),
            bearer(&format!("{good}x")),
            bearer(&format!("emk_{id}_{secret}")),
            bearer(&format!("emk_nobody_{secret}")),
            bearer(&foreign.reveal()),
            bearer(&format!(" {good}")),
            says(format!("Basic {good}")),
            says(good.clone()),
            says("Bearer ".into()),
            bearer("a.b.c"),
            bearer(&"x".repeat(9_000)),
            [bearer(good), bearer(good)].concat(),
            [bearer(good), bearer(&revoked)].concat(),
            vec![("x-api-key", good.clone())],
        ]
    }

    pub(crate) async fn ask(&self, key: Option<&str>, method: &str, path: &str, body: &str) -> Answer {
        let header = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        self.ask_with(&header, method, path, body).await
    }

    /// Sends a request with any headers.
    pub(crate) async fn ask_with(&self, headers: &str, method: &str, path: &str, body: &str) -> Answer {
        let mut wire = match headers.is_empty() {
            true => Wire::from_new_address(self.server.address).await,
            false => Wire::to(self.server.address).await,
        };
        let length = body.len();
        wire.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ))
        .await;
        wire.answer().await
    }
}
