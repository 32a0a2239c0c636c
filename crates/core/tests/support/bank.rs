//! A desk with a client that writes to the main vault.

use std::sync::Arc;

use earmark_core::{
    AccountName, AssetName, BalanceInfo, CreditDenial, CreditTerms, Definition, Kind, Operation, Overage,
    Overdraft, Receipt, ReserveOutcome, Standing, VaultId, WriteError, WriteOutcome,
};

use super::desk::{Desk, rolling};
use super::writer::{Writer, vault};

pub struct Bank {
    pub desk: Desk,
    pub writer: Writer,
}

pub fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

pub fn asset(name: &str) -> AssetName {
    AssetName::new(name).unwrap()
}

pub fn open(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny }
}

pub fn open_overdraft(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Allow }
}

pub fn freeze(name: &str) -> Operation {
    Operation::FreezeAccount { account: account(name) }
}

pub fn unfreeze(name: &str) -> Operation {
    Operation::UnfreezeAccount { account: account(name) }
}

pub fn close(name: &str) -> Operation {
    Operation::CloseAccount { account: account(name) }
}

pub fn issue(to: &str, what: &str, amount: u128) -> Operation {
    Operation::Issue { account: account(to), asset: asset(what), amount, memo: String::new() }
}

pub fn retire(from: &str, what: &str, amount: u128) -> Operation {
    Operation::Retire { account: account(from), asset: asset(what), amount, memo: String::new() }
}

pub fn transfer(from: &str, to: &str, what: &str, amount: u128) -> Operation {
    let (from, to, asset) = (account(from), account(to), asset(what));
    Operation::Transfer { from, to, asset, amount, memo: String::new() }
}

impl Bank {
    pub fn new() -> Bank {
        Bank { desk: Desk::new(), writer: Writer::of_vault("billing", "main") }
    }

    /// A transaction that must be committed.
    pub fn does(&mut self, operations: Vec<Operation>) -> Arc<Receipt> {
        let said = format!("{operations:?}");
        let receipt = match self.writer.write(&mut self.desk, operations) {
            WriteOutcome::Committed(receipt) => receipt,
            other => panic!("{said} was not committed: {other:?}"),
        };
        self.assert_balanced();
        receipt
    }

    /// A transaction that must be refused.
    pub fn refuses(&mut self, operations: Vec<Operation>) -> WriteError {
        let said = format!("{operations:?}");
        match self.writer.write(&mut self.desk, operations) {
            WriteOutcome::Refused(error) => error,
            other => panic!("{said} was not refused: {other:?}"),
        }
    }

    pub fn assert_balanced(&self) {
        for total in self.desk.book.audit(VaultId::MAIN) {
            assert_eq!(total.issued - total.retired, total.live, "{total:?}");
        }
    }

    pub fn balance(&self, name: &str, what: &str) -> Option<BalanceInfo> {
        let info = self.desk.book.account(VaultId::MAIN, &account(name))?;
        self.desk
            .book
            .balances(self.desk.now(), info.id)
            .into_iter()
            .find(|balance| balance.asset == asset(what))
    }

    pub fn available(&self, name: &str, what: &str) -> i128 {
        self.balance(name, what).map_or(0, |balance| balance.available)
    }

    pub fn standing(&self, name: &str) -> Standing {
        self.desk.book.account(VaultId::MAIN, &account(name)).unwrap().standing
    }
}

/// A limit of kind `credit` on an account of the main vault that pays `revenue`, of the asset `usd`.
pub fn credit(name: &str, payer: &str, timeout_seconds: u32, overage: Overage) -> Definition {
    let terms = CreditTerms {
        timeout_seconds,
        vault: vault("main"),
        account: account(payer),
        asset: asset("usd"),
        revenue: account("revenue"),
    };
    Definition { kind: Kind::Credit(terms), capacity: 0, overage, ..rolling(name, 1, 1) }
}

impl Bank {
    /// A limit of kind `credit` that pays someone else.
    pub fn paying(&self, name: &str, payer: &str, revenue: &str, timeout_seconds: u32) -> Definition {
        let mut definition = credit(name, payer, timeout_seconds, Overage::Debt);
        if let Kind::Credit(terms) = &mut definition.kind {
            terms.revenue = account(revenue);
        }
        definition
    }

    /// A new lease that must be denied for want of credit.
    pub fn short(&mut self, named: &[(&str, u64)]) -> CreditDenial {
        let lease = self.desk.lease();
        match self.desk.reserve(lease, named) {
            ReserveOutcome::InsufficientCredit(denial) => denial,
            other => panic!("{named:?} was not denied for want of credit: {other:?}"),
        }
    }
}
