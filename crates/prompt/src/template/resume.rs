//! Renders a template's loop over the messages from a later message on.
//!
//! The iterations of a loop of the form that [`super::rewrite`] looks for write the same text at
//! each turn of a conversation, if the variables that they read have the same values. So a render
//! records where each of them began and those values; the render of the next turn skips the
//! iterations whose messages it has too, and goes on behind their text.
//!
//! **Invariant**: a render that skips iterations writes, with the text that it skips, what the whole
//! render writes.

use std::{cell::RefCell, sync::Arc};

use minijinja::{
    Environment, Error,
    value::{Value, ValueKind},
};

use super::meter::charge_deep;

/// The filter of the values that the iterations read, before the loop.
pub(super) const BEGIN: &str = "metered_begin";
/// The filter of an iteration's number: whether it runs.
pub(super) const RUNS: &str = "metered_runs";
/// The filter of an index of the messages.
pub(super) const PLACE: &str = "metered_place";

/// Most bytes of the values that iterations read.
const MAX_VALUES: usize = 16 << 10;
/// Maximum nesting of those values.
const MAX_DEPTH: usize = 32;

/// Where the iterations of the loop over the messages began in the text.
#[derive(Clone, Debug)]
pub(crate) struct LoopRecord {
    /// The values of the variables that the iterations read.
    values: Arc<[u8]>,
    /// In bytes of the text.
    starts: Vec<usize>,
}

impl LoopRecord {
    /// Returns the memory that the record takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.values.len() + self.starts.len() * size_of::<usize>()
    }
}

/// The loop of an earlier render.
#[derive(Clone, Debug)]
pub(crate) struct EarlierLoop {
    pub(crate) record: Arc<LoopRecord>,
    /// How many iterations may be skipped: each has its message and the next one in common with
    /// the earlier render.
    pub(crate) most: usize,
    /// The bytes of the text that are known.
    pub(crate) text_bytes: usize,
}

/// The progress of the render on this thread.
#[derive(Debug, Default)]
struct RenderProgress {
    earlier: Option<EarlierLoop>,
    /// Bytes of the text so far.
    position: usize,
    /// Whether the text so far is not that of the earlier render.
    differs: bool,
    /// Iterations that do not run.
    skipped: usize,
    /// Where the text goes on, until the next byte is written.
    jump: Option<usize>,
    record: Option<LoopRecord>,
    /// Whether an iteration read what the record does not know.
    is_unknown: bool,
}

thread_local! {
    static PROGRESS: RefCell<RenderProgress> = RefCell::default();
}

/// Runs a render, which may skip iterations of an earlier one. Returns its record, if it has one.
pub(super) fn with_progress<T>(
    earlier: Option<EarlierLoop>,
    render: impl FnOnce() -> T,
) -> (T, Option<LoopRecord>) {
    let progress = RenderProgress {
        earlier,
        ..RenderProgress::default()
    };
    PROGRESS.set(progress);
    let done = render();
    let RenderProgress {
        record, is_unknown, ..
    } = PROGRESS.take();
    (done, record.filter(|_| !is_unknown))
}

/// Returns where the text goes on, if that is not behind the last byte written.
pub(super) fn take_jump() -> Option<usize> {
    PROGRESS.with_borrow_mut(|progress| progress.jump.take())
}

/// Notes that bytes were written, and whether the text still is that of the earlier render.
pub(super) fn advance(bytes: usize, differs: bool) {
    PROGRESS.with_borrow_mut(|progress| {
        progress.position += bytes;
        progress.differs |= differs;
    });
}

pub(super) fn add_filters(environment: &mut Environment<'_>) {
    environment.add_filter(BEGIN, |values: &Value| {
        charge_deep(values)?;
        PROGRESS.with_borrow_mut(|progress| progress.begin(values));
        Ok::<_, Error>(false)
    });
    environment.add_filter(RUNS, |index: usize| {
        PROGRESS.with_borrow_mut(|progress| progress.runs(index))
    });
    environment.add_filter(PLACE, |index: Value| {
        // It counts from the end, which is elsewhere at the next turn.
        if index.as_usize().is_none() {
            PROGRESS.with_borrow_mut(|progress| progress.is_unknown = true);
        }
        index
    });
}

impl RenderProgress {
    fn begin(&mut self, values: &Value) {
        let mut bytes = Vec::new();
        if self.record.is_some() || describe(values, 0, &mut bytes).is_none() {
            self.is_unknown = true;
            return;
        }
        self.record = Some(LoopRecord {
            values: bytes.into(),
            starts: Vec::new(),
        });
        self.skip();
    }

    /// Skips the iterations that the earlier render has too.
    fn skip(&mut self) {
        let (Some(earlier), Some(record)) = (&self.earlier, &mut self.record) else {
            return;
        };
        let known = &earlier.record;
        if self.differs
            || known.values != record.values
            || known.starts.first() != Some(&self.position)
        {
            return;
        }
        let is_known = |start: &usize| *start <= earlier.text_bytes;
        let starts = known.starts.partition_point(is_known);
        let skipped = earlier.most.min(starts.saturating_sub(1));
        if skipped > 0 {
            record.values = Arc::clone(&known.values);
            record.starts.extend_from_slice(&known.starts[..skipped]);
            self.skipped = skipped;
            self.position = known.starts[skipped];
            self.jump = Some(self.position);
        }
    }

    fn runs(&mut self, index: usize) -> bool {
        if index < self.skipped {
            return false;
        }
        if let Some(record) = &mut self.record {
            self.is_unknown |= record.starts.len() != index;
            record.starts.push(self.position);
        }
        true
    }
}

/// Writes a value so that different ones differ. `None`: it is too large, or no data.
fn describe(value: &Value, depth: usize, bytes: &mut Vec<u8>) -> Option<()> {
    if depth > MAX_DEPTH || bytes.len() > MAX_VALUES {
        return None;
    }
    let mut put = |mark: u8, text: &str| {
        bytes.push(mark);
        bytes.extend_from_slice(&text.len().to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    };
    match value.kind() {
        ValueKind::Undefined => put(b'u', ""),
        ValueKind::None => put(b'n', ""),
        ValueKind::Bool => put(b'b', if value.is_true() { "1" } else { "0" }),
        ValueKind::Number if value.is_integer() => put(b'i', &value.to_string()),
        ValueKind::Number => put(b'f', &value.to_string()),
        ValueKind::String if value.is_safe() => put(b's', value.as_str()?),
        ValueKind::String => put(b't', value.as_str()?),
        ValueKind::Seq => {
            let mark = if value.is_tuple() { b'(' } else { b'[' };
            put(mark, &value.len()?.to_string());
            for item in value.try_iter().ok()? {
                describe(&item, depth + 1, bytes)?;
            }
        }
        ValueKind::Map => {
            put(b'{', &value.len()?.to_string());
            for key in value.try_iter().ok()? {
                describe(&key, depth + 1, bytes)?;
                describe(&value.get_item(&key).ok()?, depth + 1, bytes)?;
            }
        }
        _ => return None,
    }
    (bytes.len() <= MAX_VALUES).then_some(())
}
