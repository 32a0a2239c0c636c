//! Several statements that are sent to the thread of a connection together.

use std::fmt::Write;

use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Sqlite};

use crate::sql::database::Value;

/// Statements of this crate. Text from outside is only bound as a value. Scripts of one shape have the same text, so
/// that they are prepared once.
#[derive(Debug, Default)]
pub(super) struct Script {
    sql: String,
    values: Vec<Value>,
}

/// Binds values in order.
pub(super) fn bind<'q>(
    mut query: Query<'q, Sqlite, SqliteArguments>,
    values: impl IntoIterator<Item = Value>,
) -> Query<'q, Sqlite, SqliteArguments> {
    for value in values {
        query = match value {
            Value::Text(text) => query.bind(text),
            Value::Int(number) => query.bind(number),
            Value::Null => query.bind(None::<i64>),
        };
    }
    query
}

impl Script {
    pub(super) fn push<const N: usize>(&mut self, sql: &'static str, values: [Value; N]) {
        debug_assert_eq!(sql.matches('?').count(), N, "a value for each question mark of {sql}");
        self.sql.push_str(sql);
        self.sql.push_str(";\n");
        self.values.extend(values);
    }

    /// Adds a statement whose parameters are `?1` to `?9`, each as often as it is needed. A script has only such statements,
    /// or none: the driver counts the parameters without a number from the first statement on.
    pub(super) fn push_numbered<const N: usize>(&mut self, sql: &'static str, values: [Value; N]) {
        const { assert!(N <= 9) };
        let bound = self.values.len();
        let mut parts = sql.split('?');
        self.sql.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let number = part.bytes().next().map_or(0, |digit| usize::from(digit.wrapping_sub(b'0')));
            debug_assert!((1..=N).contains(&number), "a value for ?{number} of {sql}");
            _ = write!(self.sql, "${}", bound.saturating_add(number));
            self.sql.push_str(part.get(1..).unwrap_or_default());
        }
        self.sql.push_str(";\n");
        self.values.extend(values);
    }

    /// The query plan of each statement.
    #[cfg(test)]
    pub(super) async fn explain(self, connection: &mut SqliteConnection) -> Vec<(String, String)> {
        let mut unnumbered = self.values.clone().into_iter();
        let mut plans = Vec::new();
        for sql in self.sql.split(";\n").filter(|sql| !sql.is_empty()) {
            let values = match sql.matches('?').count() {
                0 => self.values.clone(),
                count => unnumbered.by_ref().take(count).collect(),
            };
            let script = Script { sql: format!("explain query plan {sql}"), values };
            for row in script.run(connection).await.expect("a plan") {
                plans.push((sql.to_owned(), sqlx::Row::get::<String, _>(&row, "detail")));
            }
        }
        plans
    }

    /// Runs the statements and returns the rows of all of them.
    pub(super) async fn run(self, connection: &mut SqliteConnection) -> Result<Vec<SqliteRow>, sqlx::Error> {
        if self.sql.is_empty() {
            return Ok(Vec::new());
        }
        bind(sqlx::query(AssertSqlSafe(self.sql)), self.values).fetch_all(connection).await
    }

    /// Runs statements that only read at one moment. Otherwise a posting that changes its state in between would be in
    /// none of them. After an error the connection must be dropped.
    pub(super) async fn run_at_once(
        mut self,
        connection: &mut SqliteConnection,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        if !self.sql.is_empty() {
            self.sql = format!("begin;\n{}commit;\n", self.sql);
        }
        self.run(connection).await
    }
}
