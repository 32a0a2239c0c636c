//! Transactions of all vaults, in the order in which they came: one writer at a time has the file.

use earmark_admission::CreditCursor;
use earmark_core::NamespaceName;
use sqlx::sqlite::SqliteConnection;

use super::read::{get, rows};
use super::script::values;
use crate::sql::{PlacedRow, count, limit, placed, signed};
use crate::store::{StoreError, Transactions};

pub(super) const TRANSACTIONS: &str = "select t.place, e.namespace, e.vault, e.number, e.at_ms,
    case when ? is null or e.namespace = ? then e.body end as body
    from (select * from transactions where place > ? order by place limit ?) t
    join entries e using (namespace, vault, number) order by t.place";

pub(super) async fn transactions(
    connection: &mut SqliteConnection,
    namespace: Option<&NamespaceName>,
    after: CreditCursor,
    max: usize,
) -> Result<Transactions, StoreError> {
    let name = namespace.map(NamespaceName::as_str);
    let found = rows(connection, TRANSACTIONS, values![name, name, signed(after.commit), limit(max)]).await?;
    let row = |row| {
        let commit = count("place", get(row, "place")?)?;
        Ok(PlacedRow {
            place: CreditCursor { commit, given: 1 },
            namespace: get(row, "namespace")?,
            vault: get(row, "vault")?,
            number: count("number", get(row, "number")?)?,
            at_ms: get(row, "at_ms")?,
            body: get(row, "body")?,
        })
    };
    placed(found.iter().map(row).collect::<Result<_, _>>()?, max)
}
