//! TLS to PostgreSQL: only the right server is accepted.

use std::net::TcpListener;
use std::path::Path;

use earmark_credits::conformance::server::Server;
use earmark_credits::{PostgresOptions, PostgresStore, Store, StoreError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::helpers::{issue, total};

/// A certificate authority.
fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).expect("a name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn url(host: &str, port: u16, mode: &str, roots: &Path) -> String {
    let roots = roots.display();
    format!("postgres://postgres@{host}:{port}/postgres?sslmode={mode}&sslrootcert={roots}")
}

async fn open(url: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(url, PostgresOptions::default()).await
}

/// The refusal, which must not be a retryable error.
async fn refusal(url: &str) -> String {
    match open(url).await.err() {
        Some(StoreError::Refused(why)) => why,
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_spoken_to_if_its_certificate_and_its_name_are_right() {
    let folder = tempfile::tempdir().expect("a folder");
    let (right, wrong) = (folder.path().join("right.pem"), folder.path().join("wrong.pem"));
    let issuer = authority();
    std::fs::write(&right, issuer.pem()).expect("a file");
    std::fs::write(&wrong, authority().pem()).expect("a file");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let port = free_port();
    let pems = [certificate.pem(), key.serialize_pem()];
    let server = Server::start_on_port(port, Some([&pems[0], &pems[1]])).expect("a server");

    let trusted = url("127.0.0.1", port, "verify-full", &right);
    let store = open(&trusted).await.expect("a store");
    issue(&store, 3).await.expect("an entry");
    assert_eq!(total(&store).await, 3);
    let mut other = PgConnection::connect(&trusted).await.expect("a connection");
    let plain = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid)
        where application_name = 'earmark' and not ssl";
    let plain: i64 = sqlx::query_scalar(plain).fetch_one(&mut other).await.expect("a count");
    assert_eq!(plain, 0, "nothing goes over the line in the clear");
    store.close().await;

    let why = refusal(&url("127.0.0.1", port, "verify-full", &wrong)).await;
    assert!(why.contains("certificate"), "another authority: {why}");
    let why = refusal(&url("localhost", port, "verify-full", &right)).await;
    assert!(why.contains("certificate"), "another name: {why}");
    let why = refusal(&url("127.0.0.1", port, "verify-full", &folder.path().join("nowhere.pem"))).await;
    assert!(why.contains("nowhere.pem"), "no file: {why}");
    let store = open(&url("localhost", port, "verify-ca", &right)).await.expect("a store, whatever its name");
    store.close().await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_where_tls_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, authority().pem()).expect("a file");
    let port = free_port();
    let server = Server::start_on_port(port, None).expect("a server");
    let why = refusal(&url("127.0.0.1", port, "verify-full", &roots)).await;
    assert!(why.contains("TLS"), "{why}");
    let why = refusal(&url("127.0.0.1", port, "require", &roots)).await;
    assert!(why.contains("TLS"), "{why}");
    drop(server);
}
