//! The confirmation of extensions, which holds the growth again if it was returned.

use earmark_admission::{BackendError, GrowAnswer, GrowRequest, RenewAnswer, RenewRequest, ShrinkRequest};
use earmark_core::Actor;

use super::{SagaCredits, answers, backend_error, not_credit};
use crate::saga::{Engine, TaskError};
use crate::task::{GrowTask, RenewTask, Renewed, ShrinkTask};

/// How often a growth is held again before the request fails as overloaded.
const GROWTHS_MAX: usize = 8;

impl SagaCredits {
    pub(super) async fn renew_all(
        &self,
        actor: Option<Actor>,
        requests: Vec<RenewRequest>,
    ) -> Vec<Result<RenewAnswer, BackendError>> {
        let running = requests.into_iter().map(|request| {
            let actor = actor.clone();
            self.spawn_work(|engine| async move { renew(&engine, actor, request).await })
        });
        answers(running.collect()).await
    }
}

async fn renew(engine: &Engine, actor: Option<Actor>, request: RenewRequest) -> Result<RenewAnswer, BackendError> {
    let (namespace, lease, number) = (request.namespace.clone(), request.lease, request.number);
    let holds = request.holds.clone();
    let first = Some(request.reserved_at);
    let grow = GrowRequest { namespace: namespace.clone(), lease, number, holds: holds.clone(), first };
    let grow = GrowTask::new(&grow, actor.clone()).ok_or_else(not_credit)?;
    let shrink = ShrinkTask::new(&ShrinkRequest { namespace, lease, number, holds }, actor);
    let renew = RenewTask::new(request);
    for _ in 0..GROWTHS_MAX {
        if let Renewed::Answer(answer) = engine.execute(&renew).await.map_err(backend_error)? {
            return Ok(answer);
        }
        match engine.execute(&grow).await.map_err(backend_error)? {
            GrowAnswer::Held => {}
            GrowAnswer::Refused { key, why } => return Ok(RenewAnswer::Refused { key, why }),
            GrowAnswer::Ended | GrowAnswer::Blocked(_) => return Ok(RenewAnswer::Ended),
            // The limits have accepted this body, so the growth is that of a request that they refused.
            GrowAnswer::Differs => engine.execute(&shrink).await.map_err(backend_error)?,
        }
    }
    Err(backend_error(TaskError::Busy))
}
