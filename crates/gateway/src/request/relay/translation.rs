//! A stream that goes out in other words than it comes in.
//!
//! Its events are whole when they are translated, so nothing is ever torn. An end of the worker's that is none for the
//! client is a cut.

use bytes::Bytes;
use dialect::{ChunkOutcome, ErrorCode, SseEvent};
use tokio::time::sleep;

use super::{super::translate::StreamTranslator, CutReason, FLUSH, RelayEnd, ReplyRelay, note};

/// The translation, and how far it came.
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

    /// The client has all of its reply: what becomes of the worker's rest is no matter.
    pub(super) fn is_whole(&self) -> bool {
        self.reached == ChunkOutcome::Whole
    }
}

impl ReplyRelay {
    /// Puts what these bytes complete into the client's words.
    pub(super) fn translate(&mut self, data: &[u8]) {
        let (Some(events), Some(translation)) = (&mut self.events, &mut self.translation) else {
            return;
        };
        let StreamTranslation { stream, reached } = translation;
        let (settle, mut out) = (&mut self.guard, Vec::new());
        let mut too_long = false;
        events.splitter.push(data, |event| match event {
            SseEvent::Data { data, .. } => {
                note(settle, &data);
                if *reached == ChunkOutcome::Going {
                    *reached = stream.push(&data, &mut out);
                }
            }
            SseEvent::Oversized => too_long = *reached == ChunkOutcome::Going,
        });
        let failed = *reached == ChunkOutcome::Failed;
        self.out(out);
        if failed {
            self.broke_off();
        } else if too_long {
            // Its words are lost, and a message that lacks them must not pass for whole.
            self.cut(CutReason::Broken);
        }
    }

    /// The worker's stream has ended.
    pub(super) fn finish(&mut self) {
        let (Some(events), Some(translation)) = (&mut self.events, &mut self.translation) else {
            return;
        };
        let StreamTranslation { stream, reached } = translation;
        let (settle, mut out) = (&mut self.guard, Vec::new());
        events.splitter.finish(|event| {
            if let SseEvent::Data { data, .. } = event {
                note(settle, &data);
                if *reached == ChunkOutcome::Going {
                    *reached = stream.push(&data, &mut out);
                }
            }
        });
        if *reached == ChunkOutcome::Going {
            *reached = stream.finish(&mut out);
        }
        let reached = *reached;
        self.out(out);
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

    /// The error event is among what goes out: an unclean end follows it.
    fn broke_off(&mut self) {
        self.connection = None;
        self.guard.record_cut(ErrorCode::StreamInterrupted, None);
        self.end = RelayEnd::Breaking(Box::pin(sleep(FLUSH)));
    }
}
