//! Notes of the request path that wait to be sent.

use std::{mem, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::SharedNote;

/// Most waiting notes; further ones are dropped. A lost note costs one request its preferred worker.
const MOST: usize = 4096;

/// Notes for the peers. Without peers it takes none.
#[derive(Clone, Debug, Default)]
pub struct NoteQueue(Option<Arc<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    notes: Mutex<Vec<SharedNote>>,
    filled: Notify,
}

impl NoteQueue {
    /// Creates a queue that takes notes.
    pub fn open() -> Self {
        Self(Some(Arc::default()))
    }

    /// Returns whether notes are sent at all.
    pub fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Sends a note to the peers. Never waits.
    pub fn push(&self, note: SharedNote) {
        let Some(waiting) = &self.0 else { return };
        let mut notes = waiting.notes.lock();
        if notes.len() < MOST {
            notes.push(note);
            drop(notes);
            waiting.filled.notify_one();
        }
    }

    /// Waits for notes; for ever if the queue takes none.
    pub(crate) async fn filled(&self) {
        match &self.0 {
            Some(waiting) => waiting.filled.notified().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn take(&self) -> Vec<SharedNote> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |waiting| mem::take(&mut waiting.notes.lock()))
    }
}
