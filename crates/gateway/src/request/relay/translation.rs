//! Relays a stream in another dialect than the worker's.
//!
//! Events are whole when they are translated, so none is ever partial. If the worker's stream ends
//! where the client's cannot, the reply is cut.

use bytes::Bytes;
use dialect::{ChunkOutcome, ErrorCode, SseEvent};
use tokio::time::sleep;

use super::{
    super::{record::RequestGuard, translate::StreamTranslator},
    CutReason, FLUSH, RelayEnd, ReplyRelay, read_facts, record_facts,
};

/// The translator and its progress.
#[derive(Debug)]
pub(super) struct StreamTranslation {
    stream: StreamTranslator,
    reached: ChunkOutcome,
}

impl StreamTranslation {
    pub(super) fn new(stream: StreamTranslator) -> Self {
        Self {
            stream,
            reached: ChunkOutcome::Going,
        }
    }

    /// Returns whether the client has its whole reply: the rest of the worker's stream does not
    /// matter.
    pub(super) fn is_whole(&self) -> bool {
        self.reached == ChunkOutcome::Whole
    }

    /// Translates the data of one event to `out`. Returns whether it is an error whose text is not
    /// for clients.
    fn push(&mut self, guard: &mut RequestGuard, data: &[u8], out: &mut Vec<u8>) -> bool {
        guard.count_event(data);
        let chunk = read_facts(data);
        if chunk.is_some_and(|chunk| record_facts(guard, &chunk)) {
            return true;
        }
        if self.reached == ChunkOutcome::Going {
            self.reached = self.stream.push(data, out);
        }
        false
    }
}

impl ReplyRelay {
    /// Translates the events that these bytes complete.
    pub(super) fn translate(&mut self, data: &[u8]) {
        let (Some(events), Some(translation)) = (&mut self.events, &mut self.translation) else {
            return;
        };
        let (guard, mut out) = (&mut self.guard, Vec::new());
        let (mut too_long, mut withheld) = (false, false);
        events.splitter.push(data, |event| match event {
            _ if withheld => {}
            SseEvent::Data { data, .. } => withheld = translation.push(guard, &data, &mut out),
            SseEvent::Oversized => too_long = translation.reached == ChunkOutcome::Going,
        });
        let failed = translation.reached == ChunkOutcome::Failed;
        self.out(out);
        if withheld {
            self.cut(CutReason::Withheld);
        } else if failed {
            self.broke_off();
        } else if too_long {
            // Its text is lost, and a message without it must not pass for complete.
            self.cut(CutReason::Broken);
        }
    }

    /// Handles the end of the worker's stream.
    pub(super) fn finish(&mut self) {
        let (Some(events), Some(translation)) = (&mut self.events, &mut self.translation) else {
            return;
        };
        let (guard, mut out) = (&mut self.guard, Vec::new());
        let mut withheld = false;
        events.splitter.finish(|event| {
            if let SseEvent::Data { data, .. } = event {
                withheld = translation.push(guard, &data, &mut out);
            }
        });
        if translation.reached == ChunkOutcome::Going && !withheld {
            translation.reached = translation.stream.finish(&mut out);
        }
        let reached = translation.reached;
        self.out(out);
        if withheld {
            return self.cut(CutReason::Withheld);
        }
        match reached {
            ChunkOutcome::Whole => self.finished(),
            ChunkOutcome::Going => self.cut(CutReason::Unfinished),
            ChunkOutcome::Failed => self.broke_off(),
        }
    }

    fn out(&mut self, events: Vec<u8>) {
        if !events.is_empty() {
            self.ready.push_back(Bytes::from(events));
        }
    }

    /// Ends after an error event that is already queued: an unclean close follows it.
    fn broke_off(&mut self) {
        self.upstream.close();
        self.guard.record_cut(ErrorCode::StreamInterrupted, None);
        self.end = RelayEnd::Breaking(Box::pin(sleep(FLUSH)));
    }
}
