//! The interface that SQLite and PostgreSQL implement, with statements and rows in a common form.

use std::str::FromStr;
use std::sync::Arc;

use earmark_core::UnixMs;

use super::{corrupt, count, parse};
use crate::model::Record;
use crate::store::{Change, StoreError, Survey};

/// A value to bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
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

/// The values of a statement, in the order of its parameters.
macro_rules! values {
    ($($value:expr),* $(,)?) => { [$($crate::sql::database::Value::from($value)),*] };
}
pub(crate) use values;

/// A row of either database.
pub(crate) trait Row: Send {
    fn text_or_null(&self, column: &'static str) -> Result<Option<String>, StoreError>;

    fn int_or_null(&self, column: &'static str) -> Result<Option<i64>, StoreError>;

    fn text(&self, column: &'static str) -> Result<String, StoreError> {
        self.text_or_null(column)?.ok_or_else(|| corrupt(column, "null"))
    }

    fn int(&self, column: &'static str) -> Result<i64, StoreError> {
        self.int_or_null(column)?.ok_or_else(|| corrupt(column, "null"))
    }

    fn parse<T: FromStr>(&self, column: &'static str) -> Result<T, StoreError> {
        parse(column, &self.text(column)?)
    }

    fn count(&self, column: &'static str) -> Result<u64, StoreError> {
        count(column, self.int(column)?)
    }
}

/// A database with the tables of credit. Parameters are `$1`, `$2` and so on in both.
pub(crate) trait Database: Send + Sync + 'static {
    /// A row that a statement returns.
    type Row: Row;

    /// A page of an account's history: namespace, vault, account, after, max.
    const HISTORY: &'static str;
    /// The same, newest first: namespace, vault, account, before, max.
    const HISTORY_NEWEST: &'static str;
    /// The sums of an account's postings as `asset`, `part`, `amount`: namespace, vault, account, now,
    /// expiry. Of a hold that is due, the part `kept` will be charged.
    const FUNDS: &'static str;
    /// The sums of what an account can spend as `part`, `amount`: namespace, vault, account, now, asset,
    /// expiry.
    const SPENDABLE: &'static str;
    /// A page of transactions, the latest commit first: commit, given, max, namespace.
    const TRANSACTIONS: &'static str;
    /// The same of one actor: commit, given, max, namespace, actor.
    const TRANSACTIONS_BY: &'static str;
    /// The sums of a vault as `part`, `asset`, `account`, `amount`, `low`: namespace, vault. With `low`, which has 32
    /// bits, `amount` is the upper part of the sum.
    const CENSUS: &'static str;
    /// Counters as `place`, `used`: a JSON list of their columns.
    const USAGE: &'static str;

    /// Runs one statement that only reads.
    fn read<const N: usize>(
        &self,
        sql: &'static str,
        values: [Value; N],
    ) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;

    /// Reads the rows of a survey as `part`, `place`, and the columns of that part, of `a` to `e`.
    fn survey(&self, survey: &Survey) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;

    /// Runs [`Database::CENSUS`], which reads whole tables.
    fn census(&self, values: [Value; 2]) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;

    /// Commits plans that share no gate, client or input in one transaction; returns which took effect.
    fn commit(&self, plans: &[Arc<Record>]) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Makes lists of changes in one transaction; returns the rows that each change changed.
    fn write(&self, lists: &[Vec<Change>]) -> impl Future<Output = Result<Vec<Vec<u64>>, StoreError>> + Send;

    /// The clock that all processes share; `None` if the store has none.
    fn time(&self) -> impl Future<Output = Result<Option<UnixMs>, StoreError>> + Send;

    /// Closes the connections.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
