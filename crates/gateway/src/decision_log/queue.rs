//! The queue of receipts to write.

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::LogEntry;

/// Most queued entries, by number and by bytes: some 20 000 receipts of usual size, and far fewer
/// with the chains of long prompts. Further ones are refused.
const MOST_ENTRIES: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct LogEntryQueue {
    waiting: Mutex<PendingEntries>,
    half: Notify,
}

#[derive(Debug, Default)]
struct PendingEntries {
    entries: Vec<LogEntry>,
    bytes: usize,
}

impl LogEntryQueue {
    /// Returns false if the queue is full.
    pub(super) fn push(&self, entry: LogEntry) -> bool {
        let size = bytes(&entry);
        let mut waiting = self.waiting.lock();
        if waiting.entries.len() >= MOST_ENTRIES || waiting.bytes + size > MOST_BYTES {
            return false;
        }
        waiting.bytes += size;
        waiting.entries.push(entry);
        let half_full =
            waiting.entries.len() >= MOST_ENTRIES / 2 || waiting.bytes >= MOST_BYTES / 2;
        drop(waiting);
        if half_full {
            self.half.notify_one();
        }
        true
    }

    /// Takes all entries, in order.
    pub(super) fn take(&self) -> Vec<LogEntry> {
        std::mem::take(&mut *self.waiting.lock()).entries
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().entries.is_empty()
    }

    /// Resolves when the queue is half full, or was since the last wait.
    pub(super) async fn half_full(&self) {
        self.half.notified().await;
    }
}

fn bytes(entry: &LogEntry) -> usize {
    let text = entry.text.as_ref().map_or(0, |text| text.0.len());
    entry.receipt.bytes()
        + entry
            .chain
            .as_ref()
            .map_or(0, |chain| size_of_val(&**chain))
        + text
}
