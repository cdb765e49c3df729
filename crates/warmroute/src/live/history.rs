//! The latest changes of the configuration, with the sources needed to apply one again.

use std::collections::VecDeque;

use api::HistoryEntry;
use time::OffsetDateTime;

use super::sources::SourceTexts;

/// Most changes remembered.
const KEPT: usize = 100;

/// The latest changes, oldest first.
#[derive(Debug, Default)]
pub(super) struct ConfigHistory {
    count: u64,
    entries: VecDeque<(HistoryEntry, Option<SourceTexts>)>,
}

impl ConfigHistory {
    pub(super) fn applied(
        &mut self,
        at: OffsetDateTime,
        source: &'static str,
        changed: Vec<String>,
        from: SourceTexts,
    ) {
        let entry = self.next_entry(at, source, "applied");
        self.add(HistoryEntry { changed, ..entry }, Some(from));
    }

    pub(super) fn rejected(&mut self, at: OffsetDateTime, source: &'static str) {
        let entry = self.next_entry(at, source, "rejected");
        self.add(entry, None);
    }

    fn next_entry(
        &mut self,
        at: OffsetDateTime,
        source: &'static str,
        result: &'static str,
    ) -> HistoryEntry {
        self.count += 1;
        HistoryEntry {
            id: self.count,
            at: net::rfc3339(at),
            source: source.into(),
            result: result.into(),
            changed: Vec::new(),
        }
    }

    fn add(&mut self, entry: HistoryEntry, from: Option<SourceTexts>) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back((entry, from));
    }

    /// Returns the entries, newest first.
    pub(super) fn entries(&self) -> Vec<HistoryEntry> {
        self.entries
            .iter()
            .rev()
            .map(|(entry, _)| entry.clone())
            .collect()
    }

    /// Returns the sources of an applied change.
    pub(super) fn sources_of(&self, id: u64) -> Option<SourceTexts> {
        self.entries
            .iter()
            .find(|(entry, _)| entry.id == id)?
            .1
            .clone()
    }
}
