//! The log as the task of one stream uses it.

use std::sync::Arc;

use nats_client::{JetStream, JetStreamError};
use tokio::sync::watch;

use crate::{
    LogDelivery, LogHistory, LogMessage, StreamRole, counts::add, log::LogState,
    member::MemberState, outbox::OutgoingMessage,
};

/// One worker's stream in the log. Dropping it leaves the stream to the other replicas.
#[derive(Debug)]
pub struct LogMember {
    pub(crate) log: Arc<LogState>,
    pub(crate) state: Arc<MemberState>,
}

impl LogMember {
    /// Returns the present role, and its changes.
    pub fn roles(&self) -> watch::Receiver<StreamRole> {
        self.state.role.subscribe()
    }

    /// Returns the present role.
    pub fn role(&self) -> StreamRole {
        *self.state.role.borrow()
    }

    /// Queues a message for the log; never waits.
    pub fn publish(&self, message: LogMessage) {
        let token = Arc::clone(&self.state.token);
        let dropped = self
            .log
            .outgoing
            .lock()
            .waiting
            .push(OutgoingMessage { token, message });
        add(&self.log.counters.dropped, dropped);
        self.log.filled.notify_one();
    }

    /// Returns the next delivery; the one before counts as applied. Cancel-safe.
    pub async fn next(&self) -> LogDelivery {
        self.state.next().await
    }

    /// Returns the next delivery if there is one; the one before counts as applied.
    pub fn try_next(&self) -> Option<LogDelivery> {
        self.state.try_next()
    }

    /// Drops what was delivered: the engine is followed directly.
    pub fn discard(&self) {
        self.state.discard();
    }

    /// Reports that the engine cannot be followed here, so that another replica publishes its
    /// stream.
    pub fn record_unable(&self) {
        let now = self.log.clock.now();
        let released = self.log.ownership.lock().unable(now, &self.state.token);
        self.log.releases.lock().extend(released);
    }

    /// Records that the past of the stream was read, or is given up.
    pub fn set_past_read(&self) {
        self.state.set_in_hand(None);
    }

    /// Leaves the stream to the other replicas for good.
    pub fn leave(&self) {
        let released = self.log.ownership.lock().leave(&self.state.token);
        self.log.releases.lock().extend(released);
    }

    /// Counts a repair from the engine's replay.
    pub fn record_repair(&self) {
        add(&self.log.counters.repairs, 1);
    }

    /// Returns whether the log is in use, and its changes.
    pub fn in_use(&self) -> watch::Receiver<bool> {
        self.log.in_use.subscribe()
    }

    /// Returns the past of the stream, from the snapshot on that was restored, if any.
    pub async fn history(&self) -> Result<LogHistory, JetStreamError> {
        let client = self.log.connection.client();
        let client = client.ok_or_else(|| JetStreamError::NoAnswer {
            subject: self.state.token.to_string(),
            reason: "there is no connection".to_owned(),
        })?;
        let names = &self.log.settings.names;
        let subject = format!(
            "{}{}",
            names.subjects().trim_end_matches('>'),
            self.state.token
        );
        let from = self.log.history_from();
        let reader = JetStream::new(client)
            .read(names.stream(), &subject, from)
            .await?;
        Ok(LogHistory::new(reader, Arc::clone(&self.state)))
    }
}

impl Drop for LogMember {
    fn drop(&mut self) {
        let mut members = self.log.members.lock();
        let is_current = members
            .get(&self.state.token)
            .is_some_and(|current| Arc::ptr_eq(current, &self.state));
        if is_current {
            members.remove(&self.state.token);
            drop(members);
            self.leave();
        }
    }
}
