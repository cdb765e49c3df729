//! Counts the HTTP/2 frames of a client that cost work and carry nothing.
//!
//! Pings, settings, resets, priorities, window updates and empty frames cost their sender nothing,
//! and some of them must be answered. The HTTP library bounds the memory that they take, not their
//! rate. A client gets an allowance of such frames that grows with time and with the bytes that it
//! is sent, because a reader updates its windows as it reads.

use tokio::time::Instant;

/// Largest allowance, in frames: a client may send as many at once.
const BURST: u32 = 2_000;
/// Frames that the allowance grows by in a second.
const FRAMES_PER_SECOND: u64 = 200;
/// Bytes sent to the client that increase the allowance by one frame. A reader sends at most two
/// updates for one frame of data.
const BYTES_PER_FRAME: u64 = 64;
/// Most bytes sent that are kept for later increases.
const MAX_SENT: u64 = 64 << 20;
/// A data frame with at least this many bytes carries something.
const MIN_DATA: u32 = 16;

/// The first bytes of every HTTP/2 connection.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's header.
const HEADER: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;

/// Reads the frame headers of a client's bytes.
#[derive(Debug)]
pub(super) struct FrameMeter {
    /// Bytes of the preface that are still expected.
    preface: usize,
    header: [u8; HEADER],
    header_length: usize,
    /// Bytes of the current frame's payload that are still expected.
    payload: u64,
    allowance: u32,
    refilled: Instant,
    /// Bytes sent that have not increased the allowance.
    sent: u64,
}

/// The client exceeds its allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyFrames;

impl FrameMeter {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            preface: PREFACE.len(),
            header: [0; HEADER],
            header_length: 0,
            payload: 0,
            allowance: BURST,
            refilled: now,
            sent: 0,
        }
    }

    /// Counts the frames that begin in the next bytes of the client.
    pub(super) fn record_received(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
    ) -> Result<(), TooManyFrames> {
        skip(&mut bytes, &mut self.preface);
        while !bytes.is_empty() {
            let mut payload = usize::try_from(self.payload).unwrap_or(usize::MAX);
            skip(&mut bytes, &mut payload);
            self.payload = payload as u64;
            let missing = (HEADER - self.header_length).min(bytes.len());
            self.header[self.header_length..][..missing].copy_from_slice(&bytes[..missing]);
            self.header_length += missing;
            bytes = &bytes[missing..];
            if self.header_length == HEADER {
                self.header_length = 0;
                self.begin_frame(now)?;
            }
        }
        Ok(())
    }

    /// Counts bytes that were sent to the client.
    pub(super) fn record_sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes as u64).min(MAX_SENT);
    }

    fn begin_frame(&mut self, now: Instant) -> Result<(), TooManyFrames> {
        let [a, b, c, kind, flags, ..] = self.header;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.payload = u64::from(length);
        let carries_something = match kind {
            DATA => length >= MIN_DATA || flags & END_STREAM != 0,
            HEADERS | CONTINUATION => length > 0,
            _ => false,
        };
        if carries_something {
            return Ok(());
        }
        if self.allowance == 0 {
            self.refill(now);
        }
        self.allowance = self.allowance.checked_sub(1).ok_or(TooManyFrames)?;
        Ok(())
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled);
        let by_time = u64::try_from(elapsed.as_millis())
            .unwrap_or(u64::MAX)
            .saturating_mul(FRAMES_PER_SECOND)
            / 1000;
        if by_time > 0 {
            self.refilled = now;
        }
        let by_time = by_time.min(u64::from(BURST));
        // What is not needed now is kept: a reader that stood still updates its windows at once.
        let by_bytes = (self.sent / BYTES_PER_FRAME).min(u64::from(BURST) - by_time);
        self.sent -= by_bytes * BYTES_PER_FRAME;
        let frames = by_time + by_bytes;
        self.allowance = u32::try_from(frames).unwrap_or(BURST);
    }
}

/// Drops up to `count` bytes from the front, and counts them down.
fn skip(bytes: &mut &[u8], count: &mut usize) {
    let skipped = bytes.len().min(*count);
    *bytes = &bytes[skipped..];
    *count -= skipped;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract_id::contract;

    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(HEADER + usize::from(length), 0);
        frame
    }

    /// Returns how many frames pass at once, of at most ten thousand.
    fn passing(frame: &[u8]) -> usize {
        let now = Instant::now();
        let mut meter = FrameMeter::new(now);
        meter.record_received(PREFACE, now).unwrap();
        (0..10_000)
            .take_while(|_| meter.record_received(frame, now).is_ok())
            .count()
    }

    #[test]
    #[contract("S32")]
    fn frames_that_carry_nothing_have_an_allowance_and_others_have_none() {
        for (what, frame, limited) in [
            ("data", frame(DATA, 0, 16), false),
            ("short data", frame(DATA, 0, 15), true),
            ("empty data", frame(DATA, 0, 0), true),
            ("the end of a body", frame(DATA, END_STREAM, 0), false),
            ("a head", frame(HEADERS, 0, 10), false),
            ("an empty head", frame(HEADERS, 0, 0), true),
            ("a continuation", frame(CONTINUATION, 0, 1), false),
            ("an empty continuation", frame(CONTINUATION, 0, 0), true),
            ("a priority", frame(2, 0, 5), true),
            ("a reset", frame(3, 0, 4), true),
            ("settings", frame(4, 0, 6), true),
            ("a ping", frame(PING, 0, 8), true),
            ("a window update", frame(8, 0, 4), true),
            ("an unknown kind", frame(200, 0, 4), true),
        ] {
            let expected = if limited { BURST as usize } else { 10_000 };
            assert_eq!(passing(&frame), expected, "{what}");
        }
    }

    #[test]
    fn the_count_does_not_depend_on_how_the_bytes_are_split() {
        let now = Instant::now();
        let mut bytes = PREFACE.to_vec();
        for length in [0, 1, 8, 200] {
            bytes.extend(frame(PING, 0, length));
            bytes.extend(frame(DATA, 0, 99));
        }
        for size in 1..=bytes.len() {
            let mut meter = FrameMeter::new(now);
            for piece in bytes.chunks(size) {
                meter.record_received(piece, now).unwrap();
            }
            assert_eq!(meter.allowance, BURST - 4, "pieces of {size} bytes");
        }
    }

    #[test]
    fn the_allowance_grows_with_time_and_with_the_bytes_sent() {
        let start = Instant::now();
        let spent = || {
            let mut meter = FrameMeter::new(start);
            meter.allowance = 0;
            meter.preface = 0;
            meter
        };
        let ping = frame(PING, 0, 8);
        let mut meter = spent();
        assert_eq!(meter.record_received(&ping, start), Err(TooManyFrames));
        let mut meter = spent();
        let later = start + Duration::from_secs(1);
        assert_eq!(meter.record_received(&ping, later), Ok(()));
        assert_eq!(u64::from(meter.allowance), FRAMES_PER_SECOND - 1);
        let mut meter = spent();
        meter.record_sent(640);
        assert_eq!(meter.record_received(&ping, start), Ok(()));
        assert_eq!(meter.allowance, 9);
        let mut meter = spent();
        meter.record_sent(usize::MAX);
        assert_eq!(meter.record_received(&ping, later), Ok(()));
        assert_eq!(meter.allowance, BURST - 1, "it has an upper bound");
        // A reader that stood still answers for all that it was sent meanwhile.
        let pings = ping.repeat(3 * BURST as usize);
        assert_eq!(meter.record_received(&pings, later), Ok(()));
    }
}
