//! Queries of the router itself to workers, beside client requests.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fleet::{Fleet, WorkerView};
use net::Clock;
use proxy::{JsonQuery, JsonReply, QueryError, Upstream, send_query};

/// The workers, and the way to reach them.
#[derive(Clone, Debug)]
pub struct WorkerClient {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// Their connections.
    pub upstream: Arc<dyn Upstream>,
    /// The clock.
    pub clock: Clock,
    /// Time limit to open a connection.
    pub connect_timeout: Duration,
}

impl WorkerClient {
    /// Posts a JSON body to a worker and reads an answer of at most `most_bytes`. Dropping the
    /// future closes the connection.
    ///
    /// # Errors
    /// There is no complete answer.
    pub async fn post(
        &self,
        worker: &WorkerView,
        path: &'static str,
        body: Bytes,
        most_bytes: usize,
    ) -> Result<JsonReply, QueryError> {
        self.post_until(worker, path, body, most_bytes, None).await
    }

    /// Posts a JSON body as [`Self::post`] does, and reads the answer up to a mark, if one is given
    /// and the answer has it.
    pub(crate) async fn post_until(
        &self,
        worker: &WorkerView,
        path: &'static str,
        body: Bytes,
        most_bytes: usize,
        end_mark: Option<&'static [u8]>,
    ) -> Result<JsonReply, QueryError> {
        let query = JsonQuery {
            worker: worker.id,
            url: &worker.connection.url,
            credentials: worker.credentials(),
            path,
            body,
            most_bytes,
            end_mark,
            connect_timeout: self.connect_timeout,
        };
        send_query(&*self.upstream, query).await
    }
}
