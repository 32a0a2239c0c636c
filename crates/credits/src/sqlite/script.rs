//! Several statements that go to the thread of a connection as one, and what is bound in them.

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Sqlite};

/// A value to bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Int(i64),
    Null,
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

/// Statements of this crate, one after the other, without any text from outside: that is bound. Lists of the same shape
/// have the same text, so that they are prepared once.
#[derive(Debug, Default)]
pub(super) struct Script {
    sql: String,
    values: Vec<Value>,
}

/// The values of a statement, in the order of its question marks.
macro_rules! values {
    ($($value:expr),* $(,)?) => { [$($crate::sqlite::script::Value::from($value)),*] };
}
pub(super) use values;

impl Script {
    pub(super) fn push<const N: usize>(&mut self, sql: &'static str, values: [Value; N]) {
        debug_assert_eq!(sql.matches('?').count(), N, "a value for each question mark of {sql}");
        self.sql.push_str(sql);
        self.sql.push_str(";\n");
        self.values.extend(values);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sql.is_empty()
    }

    /// How SQLite would run each statement.
    #[cfg(test)]
    pub(super) async fn explain(self, connection: &mut SqliteConnection) -> Vec<(String, String)> {
        let mut values = self.values.into_iter();
        let mut plans = Vec::new();
        for sql in self.sql.split(";\n").filter(|sql| !sql.is_empty()) {
            let mut script = Script { sql: format!("explain query plan {sql}"), values: Vec::new() };
            script.values.extend(values.by_ref().take(sql.matches('?').count()));
            for row in script.run(connection).await.expect("a plan") {
                plans.push((sql.to_owned(), sqlx::Row::get::<String, _>(&row, "detail")));
            }
        }
        plans
    }

    /// Runs the statements, and gives the rows of all of them.
    pub(super) async fn run(self, connection: &mut SqliteConnection) -> Result<Vec<SqliteRow>, sqlx::Error> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let mut query = sqlx::query::<Sqlite>(AssertSqlSafe(self.sql));
        for value in self.values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Int(number) => query.bind(number),
                Value::Null => query.bind(None::<i64>),
            };
        }
        query.fetch_all(connection).await
    }

    /// The same for statements that only read: all of them see one moment. Each by itself would see its own, and a posting
    /// that goes from one state to another in between would be in none of them. If it fails the connection must go.
    pub(super) async fn run_at_once(
        mut self,
        connection: &mut SqliteConnection,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        if !self.is_empty() {
            self.sql = format!("begin;\n{}commit;\n", self.sql);
        }
        self.run(connection).await
    }
}
