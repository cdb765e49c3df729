//! The past of one stream.

use std::sync::Arc;

use nats_client::{JetStreamError, StreamReader};

use crate::{LogMessage, member::MemberState};

/// The messages of one stream, up to the last one when it was opened.
#[derive(Debug)]
pub struct LogHistory {
    reader: StreamReader,
    member: Arc<MemberState>,
}

impl LogHistory {
    pub(crate) fn new(reader: StreamReader, member: Arc<MemberState>) -> Self {
        Self { reader, member }
    }

    /// Returns the next message; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<LogMessage>, JetStreamError> {
        loop {
            let Some((log_seq, message)) = self.reader.next().await? else {
                return Ok(None);
            };
            self.member.set_in_hand(Some(log_seq));
            if let Some(read) = LogMessage::decode(&message) {
                return Ok(Some(read));
            }
        }
    }
}
