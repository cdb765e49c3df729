//! Splits a stream of server-sent events as its bytes arrive.
//!
//! For the relay it reports the end of the last complete event, so that no partial event goes out
//! by accident; for accounting it passes on each event's data. It changes no byte and rejects none:
//! any bytes may be passed on.
//!
//! **Invariant**: the events do not depend on how the bytes were split, and at most
//! [`MAX_EVENT_BYTES`] are buffered.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// Maximum length of a buffered event: a longer one passes and is reported as oversized.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseEvent<'a> {
    /// An event with data.
    Data {
        /// The value of its `event` field.
        name: Option<Cow<'a, [u8]>>,
        /// Its `data` lines, joined by line feeds. Not necessarily UTF-8.
        data: Cow<'a, [u8]>,
    },
    /// An event over [`MAX_EVENT_BYTES`]: its content was discarded.
    Oversized,
}

/// The result of [`SseSplitter::push`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SsePushOutcome {
    /// Number of the chunk's bytes that belong to complete events (comments included). The rest
    /// starts a new one.
    pub complete: usize,
    /// Number of events passed to the callback.
    pub events: usize,
}

/// The state between chunks of one stream.
#[derive(Debug, Default)]
pub struct SseSplitter {
    /// The incomplete block, as received. Bounded: a block beyond the limit is discarded.
    tail: Vec<u8>,
    /// Bytes of the current block, buffered or not.
    block: usize,
    /// Whether the current line has at least one byte.
    in_line: bool,
    /// Whether the previous byte was a carriage return: a line feed now belongs to it.
    after_return: bool,
    /// Whether any bytes arrived: a byte order mark is possible only before them.
    started: bool,
}

impl SseSplitter {
    /// Returns a splitter at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and passes on each event that they complete.
    ///
    /// ```
    /// use dialect::{SseEvent, SseSplitter};
    ///
    /// let mut seen = Vec::new();
    /// let mut splitter = SseSplitter::new();
    /// let pushed = splitter.push(b"data: one\n\ndata: tw", |event| {
    ///     if let SseEvent::Data { data, .. } = event {
    ///         seen.push(data.into_owned());
    ///     }
    /// });
    /// assert_eq!(seen, [b"one"]);
    /// assert_eq!(pushed.complete, 11);
    /// assert!(!splitter.at_boundary());
    /// ```
    pub fn push(&mut self, chunk: &[u8], mut on_event: impl FnMut(SseEvent<'_>)) -> SsePushOutcome {
        let mut pushed = SsePushOutcome::default();
        let mut at = 0;
        while at < chunk.len() {
            if std::mem::take(&mut self.after_return) && chunk[at] == b'\n' {
                at += 1;
                if self.block == 0 {
                    // The previous carriage return ended the block: its line feed starts no other
                    // one.
                    pushed.complete = at;
                } else {
                    self.block += 1;
                }
                continue;
            }
            let rest = &chunk[at..];
            let line = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            if line > 0 {
                self.in_line = true;
                self.block += line;
                at += line;
                continue;
            }
            self.after_return = chunk[at] == b'\r';
            self.block += 1;
            at += 1;
            if std::mem::take(&mut self.in_line) {
                continue;
            }
            // An empty line: everything since the last one is complete.
            let fed = self.close(&chunk[pushed.complete..at], &mut on_event);
            pushed.events += usize::from(fed);
            pushed.complete = at;
        }
        self.keep(&chunk[pushed.complete..]);
        pushed
    }

    /// Ends the stream: passes on a last event without an empty line, as lenient clients do.
    pub fn finish(&mut self, mut on_event: impl FnMut(SseEvent<'_>)) -> bool {
        self.in_line = false;
        self.close(&[], &mut on_event)
    }

    /// Returns whether the bytes so far end at an event's end (or before the first event).
    pub fn at_boundary(&self) -> bool {
        self.block == 0
    }

    /// Returns whether the current event is over the limit: the relay must not hold it back.
    pub fn is_oversized(&self) -> bool {
        self.block > MAX_EVENT_BYTES
    }

    /// Ends the current block, of which `last` are the bytes that are not buffered yet.
    fn close(&mut self, last: &[u8], on_event: &mut impl FnMut(SseEvent<'_>)) -> bool {
        let first = !std::mem::replace(&mut self.started, true);
        let oversized = self.is_oversized();
        self.block = 0;
        if oversized {
            on_event(SseEvent::Oversized);
            return true;
        }
        let fed = if self.tail.is_empty() {
            event(last, first).map(&mut *on_event).is_some()
        } else {
            self.tail.extend_from_slice(last);
            event(&self.tail, first).map(&mut *on_event).is_some()
        };
        // An event of usual size leaves its buffer to the next one; a large buffer is freed.
        if self.tail.capacity() > 16 * 1024 {
            self.tail = Vec::new();
        }
        self.tail.clear();
        fed
    }

    fn keep(&mut self, partial: &[u8]) {
        if self.is_oversized() {
            self.tail = Vec::new();
        } else {
            self.tail.extend_from_slice(partial);
        }
    }
}

/// Reads a block: its `data` and `event` lines. `None` if it has no data.
fn event(block: &[u8], first_of_stream: bool) -> Option<SseEvent<'_>> {
    let block = if first_of_stream {
        block.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(block)
    } else {
        block
    };
    let mut name = None;
    let mut data: Option<Cow<'_, [u8]>> = None;
    let mut rest = block;
    while !rest.is_empty() {
        let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        // A line feed after a carriage return makes an empty line here, which has no effect.
        rest = rest.get(end + 1..).unwrap_or_default();
        let (field, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => match &mut data {
                None => data = Some(Cow::Borrowed(value)),
                Some(lines) => {
                    let lines = lines.to_mut();
                    lines.push(b'\n');
                    lines.extend_from_slice(value);
                }
            },
            b"event" => name = Some(Cow::Borrowed(value)),
            _ => {}
        }
    }
    data.map(|data| SseEvent::Data { name, data })
}
