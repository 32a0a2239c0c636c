//! The database permissions in docs/operating.md suffice.

use earmark_credits::conformance::{self, server};
use earmark_credits::{PostgresOptions, PostgresStore, Store};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::helpers::{home, issue};

/// The SQL block in docs/operating.md, for another schema and role.
fn grants(schema: &str, role: &str) -> String {
    let page = include_str!("../../../../docs/operating.md");
    let start = page.find("grant usage on schema earmark").expect("the grants");
    let end = start + page[start..].find("```").expect("the end of the grants");
    page[start..end]
        .replace("earmark_service", role)
        .replace("schema earmark ", &format!("schema {schema} "))
        .replace(" earmark.", &format!(" {schema}."))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_the_rights_of_the_manual_serves_and_cannot_change_history() {
    let url = server::shared().expect("a server");
    let name = format!("t{}", ulid::Ulid::generate()).to_ascii_lowercase();
    let options = PostgresOptions { schema: name.clone(), ..PostgresOptions::default() };
    let owner = PostgresStore::open(&url, options.clone()).await.expect("a store");
    issue(&owner, 1).await.expect("an entry");
    owner.close().await;
    let mut admin = PgConnection::connect(&url).await.expect("a connection");
    let role = format!("create role {name} login; {}", grants(&name, &name));
    admin.execute(AssertSqlSafe(role)).await.expect("a role");

    let as_role = url.parse::<PgConnectOptions>().expect("a URL").username(&name);
    let store = PostgresStore::connect(as_role.clone(), options).await.expect("a store that serves");
    // Together these make every kind of change and read.
    conformance::an_account_that_is_not_opened_after_all_was_never_there(&store).await;
    conformance::only_a_silent_owner_is_taken_over(&store).await;
    conformance::an_owner_that_left_is_silent(&store).await;
    conformance::deciding_needs_the_next_sequence_of_the_client(&store).await;
    conformance::a_release_gives_back_what_that_attempt_took_and_nothing_else(&store).await;
    store.orphans(9).await.expect("a look");
    conformance::the_holds_of_a_lease_are_found(&store).await;
    conformance::of_many_renewals_at_once_one_happens(&store).await;
    issue(&store, 2).await.expect("an entry");
    store.census(home()).await.expect("an audit");
    store.close().await;

    let mut role = PgConnection::connect_with(&as_role).await.expect("a connection");
    role.execute(AssertSqlSafe(format!("set search_path to {name}"))).await.expect("a schema");
    for forbidden in [
        "update postings set amount = 1000",
        "update postings set account = 'mine'",
        "delete from postings",
        "update entries set body = '{}'",
        "delete from entries",
        "update changes set amount = 0",
        "delete from changes",
        "truncate entries",
        "insert into earmark_schema (version) values (99)",
        "drop table postings",
    ] {
        let error = role.execute(forbidden).await.expect_err(forbidden);
        let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}: {error}");
    }
    role.execute("update postings set reservation_id = reservation_id where false").await.expect("a right");
}
