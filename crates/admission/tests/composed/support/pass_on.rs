//! The methods of parts for doubles that leave most of them to another part.

/// Implements methods of `Limits` by the part in a field.
macro_rules! pass_on_limits {
    ($to:tt: $($name:ident)*) => { $(pass_on_limits!(@ $to $name);)* };
    (@ $to:tt apply_definition) => { pass_on!($to apply_definition(namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<EnforcedStatus, BackendError>>); };
    (@ $to:tt usage) => { pass_on!($to usage(namespace: NamespaceName, limit: Arc<LimitInfo>) -> Answer<'_, Result<Usage, BackendError>>); };
    (@ $to:tt lease) => { pass_on!($to lease(namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>>); };
    (@ $to:tt stats) => { pass_on!($to stats() -> Stats); };
    (@ $to:tt ready) => { pass_on!($to ready() -> Result<(), String>); };
    (@ $to:tt shut_down) => { pass_on!($to shut_down() -> Answer<'_, ()>); };
    (@ $to:tt reserve) => { pass_on!($to reserve(requests: Vec<LimitsReserve>) -> Answers<'_, ReserveAnswer>); };
    (@ $to:tt extend) => { pass_on!($to extend(requests: Vec<LimitsExtend>) -> Answers<'_, LimitsExtended>); };
    (@ $to:tt complete) => { pass_on!($to complete(requests: Vec<LimitsComplete>) -> Answers<'_, CompleteAnswer>); };
    (@ $to:tt release) => { pass_on!($to release(namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<(), BackendError>>); };
    (@ $to:tt enforced_status) => { pass_on!($to enforced_status(namespace: NamespaceName, limits: Vec<Arc<LimitInfo>>) -> Answer<'_, Result<Vec<EnforcedStatus>, BackendError>>); };
}

/// Implements methods of `Credits` by the part in a field.
macro_rules! pass_on_credits {
    ($to:tt: $($name:ident)*) => { $(pass_on_credits!(@ $to $name);)* };
    (@ $to:tt write) => { pass_on!($to write(writer: Writer, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>>); };
    (@ $to:tt client_state) => { pass_on!($to client_state(namespace: NamespaceName, vault: VaultName, client: ClientId) -> Answer<'_, Result<u64, CreditReadError>>); };
    (@ $to:tt grants) => { pass_on!($to grants(account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>>); };
    (@ $to:tt balances) => { pass_on!($to balances(account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>>); };
    (@ $to:tt usage) => { pass_on!($to usage(namespace: NamespaceName, limit: Arc<Definition>) -> Answer<'_, Result<Usage, BackendError>>); };
    (@ $to:tt room) => { pass_on!($to room(namespace: NamespaceName, terms: CreditTerms) -> Answer<'_, Result<CreditRoom, BackendError>>); };
    (@ $to:tt accounts) => { pass_on!($to accounts(namespace: NamespaceName, vault: VaultName, query: AccountQuery) -> Answer<'_, Result<AccountPage, CreditReadError>>); };
    (@ $to:tt entries) => { pass_on!($to entries(account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>>); };
    (@ $to:tt changes) => { pass_on!($to changes(query: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>>); };
    (@ $to:tt audit) => { pass_on!($to audit(namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>>); };
    (@ $to:tt ready) => { pass_on!($to ready() -> Result<(), String>); };
    (@ $to:tt shut_down) => { pass_on!($to shut_down() -> Answer<'_, ()>); };
    (@ $to:tt shrink) => { pass_on!($to shrink(actor: Option<Actor>, request: ShrinkRequest) -> Answer<'_, Result<(), BackendError>>); };
    (@ $to:tt renew) => { pass_on!($to renew(actor: Option<Actor>, requests: Vec<RenewRequest>) -> Answers<'_, RenewAnswer>); };
    (@ $to:tt settle) => { pass_on!($to settle(actor: Option<Actor>, requests: Vec<SettleRequest>) -> Answers<'_, SettleAnswer>); };
    (@ $to:tt holds) => { pass_on!($to holds(namespace: NamespaceName, lease: LeaseId, requirements: Vec<earmark_admission::Amount>) -> Answer<'_, Result<HoldState, BackendError>>); };
}

/// Passes a method on to the part in a field.
macro_rules! pass_on {
    ($to:tt $name:ident($($argument:ident: $type:ty),*) -> $answer:ty) => {
        fn $name(&self, $($argument: $type),*) -> $answer {
            self.$to.$name($($argument),*)
        }
    };
}
