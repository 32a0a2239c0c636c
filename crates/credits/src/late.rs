//! [`LateCredits`]: credit on a store that need not be there yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use earmark_admission::{
    AccountPath, Answer, Audit, BackendError, ChangePage, Clock, CreditCursor, CreditReadError, Credits,
    EntryPage, HoldAnswer, HoldRequest, HoldState, SettleAnswer, SettleRequest, WriteAnswer, WriteRequest,
};
use earmark_core::{Actor, BalanceInfo, ClientId, Definition, LeaseId, NamespaceName, Usage, VaultName};
use tokio::task::JoinHandle;

use crate::saga::Options;
use crate::saga_credits::SagaCredits;
use crate::store::{Store, StoreError};

/// The first pause before a store is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Opens a store, as often as it takes.
pub type OpenStore = Box<dyn Fn() -> Answer<'static, Result<Arc<dyn Store>, StoreError>> + Send + Sync>;

/// Credit on a store that is waited for in the background if it is not there when the process starts. Until then every call
/// fails at once and says why; nothing of it happens, and the same may be asked again.
pub struct LateCredits {
    shared: Arc<Shared>,
    opener: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    open: OpenStore,
    clock: Arc<dyn Clock>,
    options: Options,
    started: OnceLock<SagaCredits>,
    /// Why it was not started the last time.
    trouble: Mutex<String>,
    is_closed: AtomicBool,
}

impl LateCredits {
    /// Tries once, and goes on in the background if the store is not there.
    ///
    /// # Errors
    /// When the store is there and says no, or cannot be used by this version: waiting would not help.
    pub async fn start(
        open: OpenStore,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<LateCredits, StoreError> {
        let (started, trouble) = (OnceLock::new(), Mutex::default());
        let shared =
            Arc::new(Shared { open, clock, options, started, trouble, is_closed: AtomicBool::new(false) });
        let opener = match shared.try_start().await {
            Ok(()) => None,
            Err(error) if error.is_passing() => {
                shared.note(&error);
                Some(tokio::spawn(wait(Arc::clone(&shared))))
            }
            Err(error) => return Err(error),
        };
        Ok(LateCredits { shared, opener: Mutex::new(opener) })
    }

    fn credits(&self) -> Result<&SagaCredits, BackendError> {
        self.shared.started.get().ok_or_else(|| BackendError::Failed(self.shared.why()))
    }

    /// Asks, if there is somebody to ask.
    async fn ask<'a, T, E: From<BackendError>>(
        &'a self,
        question: impl FnOnce(&'a SagaCredits) -> Answer<'a, Result<T, E>>,
    ) -> Result<T, E> {
        question(self.credits()?).await
    }

    /// The same for many questions at once.
    async fn ask_all<'a, R, T>(
        &'a self,
        requests: Vec<R>,
        question: impl FnOnce(&'a SagaCredits, Vec<R>) -> Answer<'a, Vec<Result<T, BackendError>>>,
    ) -> Vec<Result<T, BackendError>> {
        match self.credits() {
            Ok(credits) => question(credits, requests).await,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

impl Shared {
    async fn try_start(&self) -> Result<(), StoreError> {
        let store = (self.open)().await?;
        let started =
            SagaCredits::start(Arc::clone(&store), Arc::clone(&self.clock), self.options.clone()).await;
        match started {
            Ok(started) => {
                // Nobody else starts it.
                let _ = self.started.set(started);
                Ok(())
            }
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    fn note(&self, error: &StoreError) {
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = error.to_string();
        if *known != trouble {
            tracing::warn!(%trouble, "credit is not served yet; the store is tried again and again");
        }
        *known = trouble;
    }

    fn why(&self) -> String {
        if self.is_closed.load(Ordering::SeqCst) {
            return "credit is shut down".to_owned();
        }
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        format!("the store has not answered since the start: {trouble}")
    }
}

/// Tries until it works. A store that says no by now may have been corrected by the next time, so that is no reason to stop.
async fn wait(shared: Arc<Shared>) {
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        match shared.try_start().await {
            Ok(()) => {
                tracing::info!("the store of credit answers, and credit is served");
                return;
            }
            Err(error) => shared.note(&error),
        }
        pause = pause.saturating_mul(2).min(PAUSE_MAX);
    }
}

impl Credits for LateCredits {
    fn hold(
        &self,
        actor: Option<Actor>,
        requests: Vec<HoldRequest>,
    ) -> Answer<'_, Vec<Result<HoldAnswer, BackendError>>> {
        Box::pin(self.ask_all(requests, |credits, requests| credits.hold(actor, requests)))
    }

    fn settle(
        &self,
        actor: Option<Actor>,
        requests: Vec<SettleRequest>,
    ) -> Answer<'_, Vec<Result<SettleAnswer, BackendError>>> {
        Box::pin(self.ask_all(requests, |credits, requests| credits.settle(actor, requests)))
    }

    fn holds(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<HoldState, BackendError>> {
        Box::pin(self.ask(move |credits| credits.holds(namespace, lease)))
    }

    fn write(&self, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        Box::pin(self.ask(move |credits| credits.write(request)))
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        Box::pin(self.ask(move |credits| credits.client_state(namespace, vault, client)))
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        Box::pin(self.ask(move |credits| credits.balances(account)))
    }

    fn usage(
        &self,
        namespace: NamespaceName,
        limit: Arc<Definition>,
    ) -> Answer<'_, Result<Usage, BackendError>> {
        Box::pin(self.ask(move |credits| credits.usage(namespace, limit)))
    }

    fn entries(
        &self,
        account: AccountPath,
        after: u64,
        page_size: usize,
    ) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Box::pin(self.ask(move |credits| credits.entries(account, after, page_size)))
    }

    fn changes(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        page_size: usize,
    ) -> Answer<'_, Result<ChangePage, BackendError>> {
        Box::pin(self.ask(move |credits| credits.changes(namespace, after, page_size)))
    }

    fn audit(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
    ) -> Answer<'_, Result<Audit, CreditReadError>> {
        Box::pin(self.ask(move |credits| credits.audit(namespace, vault)))
    }

    fn ready(&self) -> Result<(), String> {
        self.shared.started.get().map_or_else(|| Err(self.shared.why()), Credits::ready)
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.shared.is_closed.store(true, Ordering::SeqCst);
            let opener = self.opener.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(opener) = opener {
                opener.abort();
                // Whatever it was about to do is over when it has ended.
                let _ = opener.await;
            }
            if let Some(credits) = self.shared.started.get() {
                credits.shut_down().await;
            }
        })
    }
}

impl Drop for LateCredits {
    fn drop(&mut self) {
        let opener = self.opener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(opener) = opener {
            opener.abort();
        }
    }
}
