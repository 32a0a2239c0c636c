//! A test Book with a client that writes to the main vault.

use std::sync::Arc;

use earmark_core::{
    AccountName, AccountStatus, AssetName, BalanceInfo, Config, CreditDenial, CreditTerms, Definition, GrantTerms,
    Kind, Operation, Overage, Overdraft, Receipt, ReserveOutcome, VaultId, WriteError, WriteOutcome,
};

use super::test_book::{TestBook, rolling};
use super::writer::{Writer, vault};

pub struct Bank {
    pub test: TestBook,
    pub writer: Writer,
}

pub fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

pub fn asset(name: &str) -> AssetName {
    AssetName::new(name).unwrap()
}

pub fn open(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny, plan: None }
}

pub fn open_overdraft(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Allow, plan: None }
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
    Operation::Issue { account: account(to), asset: asset(what), amount, memo: String::new(), terms: GrantTerms::PLAIN }
}

pub fn grant(to: &str, what: &str, amount: u128, terms: GrantTerms) -> Operation {
    Operation::Issue { account: account(to), asset: asset(what), amount, memo: String::new(), terms }
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
        Bank::with(Config::default())
    }

    pub fn with(config: Config) -> Bank {
        Bank { test: TestBook::with(config), writer: Writer::of_vault("billing", "main") }
    }

    /// Applies a transaction that must be committed.
    pub fn commit(&mut self, operations: Vec<Operation>) -> Arc<Receipt> {
        let said = format!("{operations:?}");
        let receipt = match self.writer.write(&mut self.test, operations) {
            WriteOutcome::Committed(receipt) => receipt,
            other => panic!("{said} was not committed: {other:?}"),
        };
        self.assert_balanced();
        receipt
    }

    /// Applies a transaction that must be refused.
    pub fn refuse(&mut self, operations: Vec<Operation>) -> WriteError {
        let said = format!("{operations:?}");
        match self.writer.write(&mut self.test, operations) {
            WriteOutcome::Refused(error) => error,
            other => panic!("{said} was not refused: {other:?}"),
        }
    }

    pub fn assert_balanced(&self) {
        for total in self.test.book.audit(VaultId::MAIN) {
            assert_eq!(total.issued - total.retired - total.expired, total.live, "{total:?}");
        }
    }

    pub fn balance(&self, name: &str, what: &str) -> Option<BalanceInfo> {
        let info = self.test.book.account(VaultId::MAIN, &account(name))?;
        self.test.book.balances(self.test.now(), info.id).into_iter().find(|balance| balance.asset == asset(what))
    }

    pub fn available(&self, name: &str, what: &str) -> i128 {
        self.balance(name, what).map_or(0, |balance| balance.available)
    }

    pub fn standing(&self, name: &str) -> AccountStatus {
        self.test.book.account(VaultId::MAIN, &account(name)).unwrap().standing
    }
}

/// A credit limit on an account of the main vault, paying `revenue` in `usd`.
pub fn credit(name: &str, payer: &str, timeout_seconds: u32, overage: Overage) -> Definition {
    let terms = CreditTerms {
        timeout_seconds,
        vault: vault("main"),
        account: account(payer),
        asset: asset("usd"),
        revenue: account("revenue"),
        on_timeout: Default::default(),
    };
    Definition { kind: Kind::Credit(terms), capacity: 0, overage, ..rolling(name, 1, 1) }
}

impl Bank {
    /// A credit limit with another revenue account.
    pub fn paying(&self, name: &str, payer: &str, revenue: &str, timeout_seconds: u32) -> Definition {
        let mut definition = credit(name, payer, timeout_seconds, Overage::Debt);
        if let Kind::Credit(terms) = &mut definition.kind {
            terms.revenue = account(revenue);
        }
        definition
    }

    /// Reserves with a new lease; the answer must be a denial for lack of credit.
    pub fn deny_credit(&mut self, named: &[(&str, u64)]) -> CreditDenial {
        let lease = self.test.lease();
        match self.test.reserve(lease, named) {
            ReserveOutcome::InsufficientCredit(denial) => denial,
            other => panic!("{named:?} was not denied for want of credit: {other:?}"),
        }
    }
}
