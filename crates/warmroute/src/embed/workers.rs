//! Workers that come and go while a router runs. Source: contract DY38.

use std::sync::Arc;

use admin::{Control, NamedWorker, WorkerRejection};
use dialect::{ApiError, ErrorCode};
use serde_json::{Map, Value};

use super::{CallError, EmbeddedRouter, WorkerReport};

impl EmbeddedRouter {
    /// Returns the state of all workers.
    pub fn workers(&self) -> Vec<WorkerReport> {
        self.view.worker_reports()
    }

    /// Adds a worker, or replaces the one of its name; returns its name. The entry is a body of
    /// `PUT /admin/workers/NAME`; with `lease_ttl` the worker is removed unless it is put again in
    /// time.
    ///
    /// # Errors
    ///
    /// Those of the call; nothing has changed then.
    pub async fn put_worker(&self, entry: Map<String, Value>) -> Result<String, CallError> {
        let worker = NamedWorker::of_body(None, entry)?;
        let (name, _) = self
            .change(move |control| control.add_worker(worker, true))
            .await?;
        Ok(name)
    }

    /// Removes a worker, whose running requests go on. Returns whether there ever was one of that
    /// name.
    ///
    /// # Errors
    ///
    /// Another part of the configuration needs it.
    pub async fn remove_worker(&self, name: String) -> Result<bool, CallError> {
        self.change(move |control| control.remove_worker(&name))
            .await
    }

    /// Makes a change on a thread that may wait for it. It goes on when its caller leaves.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&dyn Control) -> Result<T, WorkerRejection> + Send + 'static,
    ) -> Result<T, CallError> {
        let control = Arc::clone(&self.view.control);
        let changed = runtime::spawn_blocking(move || change(&*control)).await;
        let changed = changed.map_err(|error| CallError::new(ErrorCode::Internal, error))?;
        changed.map_err(|refused| ApiError::from(refused).into())
    }
}
