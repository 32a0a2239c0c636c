//! Calls that share requests.

use std::sync::Arc;

use earmark_core::LeaseId;
use tokio::runtime::Handle;

use crate::batcher::{BatchOptions, Batcher};
use crate::call::{Call, CallAnswer, CallCompleted, CallOutcome};
use crate::client::Client;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::key::ClientKey;
use crate::options::OptionsError;
use crate::request::{CompleteCall, Item, PlaceCall};

/// Sends calls and their ends in batches, while as many requests are under way as [`BatchOptions`] allow. The retry
/// rules are those of [`Client::call`] and [`Client::complete_call`]. Calls for different clients never share a batch.
pub struct Calls {
    client: Client,
    calls: Batcher<PlaceCall>,
    completes: Batcher<CompleteCall>,
}

impl Calls {
    /// Calls of this client, whose protocol is HTTP. The runtime of the caller sends them.
    ///
    /// # Errors
    /// [`OptionsError::NoRuntime`] outside of a runtime.
    pub fn new(client: Client, batching: BatchOptions) -> Result<Calls, OptionsError> {
        let handle = Handle::try_current().map_err(|_| OptionsError::NoRuntime)?;
        let calls = Batcher::new(client.clone(), batching, handle.clone());
        let completes = Batcher::new(client.clone(), batching, handle);
        Ok(Calls { client, calls, completes })
    }

    /// As [`Client::call`].
    ///
    /// # Errors
    /// Those of [`Client::call`].
    pub async fn call(
        &self,
        call: &Call,
        client: Option<&ClientKey>,
        deadline: Deadline,
    ) -> Result<CallAnswer, Failure> {
        self.ask(&self.calls, PlaceCall(Arc::new(call.clone()), client.cloned()), deadline).await
    }

    /// As [`Client::complete_call`].
    ///
    /// # Errors
    /// Those of [`Client::complete_call`].
    pub async fn complete(
        &self,
        lease: LeaseId,
        outcome: &CallOutcome,
        deadline: Deadline,
    ) -> Result<CallCompleted, Failure> {
        self.ask(&self.completes, CompleteCall(lease, Arc::new(outcome.clone())), deadline).await
    }

    async fn ask<I: Item + Clone>(
        &self,
        batcher: &Batcher<I>,
        item: I,
        deadline: Deadline,
    ) -> Result<I::Answer, Failure> {
        // A request belongs to one trace.
        if earmark_trace::current().is_some_and(|context| context.is_sampled) {
            return Box::pin(self.client.ask_alone(item, deadline)).await;
        }
        self.client.retry(true, deadline, || batcher.ask(item.clone(), deadline)).await
    }
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("client", &self.client).finish_non_exhaustive()
    }
}
