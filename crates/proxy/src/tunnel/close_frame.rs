//! Whether a peer has closed its side of a WebSocket conversation, as RFC 6455 says it in the
//! frames that pass.

/// Opcode of a close frame.
const CLOSE: u8 = 8;

/// Finds a close frame among frames that arrive in pieces of any size. Only the head of a frame is
/// read; its payload is skipped by its length.
#[derive(Debug, Default)]
pub(super) struct CloseFrameFinder {
    /// The head of the present frame so far, at most 14 bytes.
    head: Vec<u8>,
    /// Bytes of the present payload that are still to come.
    payload: u64,
    found: bool,
}

impl CloseFrameFinder {
    /// Reads the next bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while let Some((first, after)) = bytes.split_first() {
            if self.payload > 0 {
                let skipped = usize::try_from(self.payload)
                    .map_or(bytes.len(), |payload| payload.min(bytes.len()));
                self.payload -= skipped as u64;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            self.head.push(*first);
            bytes = after;
            if let Some(payload) = payload_length(&self.head) {
                self.found |= self.head.first().is_some_and(|byte| byte & 0xf == CLOSE);
                self.payload = payload;
                self.head.clear();
            }
        }
    }

    /// Returns whether a close frame has come.
    pub(super) fn is_found(&self) -> bool {
        self.found
    }
}

/// Returns the length of a frame's payload once its head is complete.
fn payload_length(head: &[u8]) -> Option<u64> {
    let second = head.get(1)?;
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    if head.len() < 2 + extended + mask {
        return None;
    }
    if extended == 0 {
        return Some(u64::from(second & 0x7f));
    }
    let digits = head.get(2..2 + extended)?;
    Some(
        digits
            .iter()
            .fold(0, |length, byte| length << 8 | u64::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: u8, mask: bool, payload: usize) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        let masked = if mask { 0x80 } else { 0 };
        match payload {
            0..126 => frame.push(masked | u8::try_from(payload).expect("short")),
            126..65536 => {
                frame.push(masked | 126);
                frame.extend(u16::try_from(payload).expect("short").to_be_bytes());
            }
            _ => {
                frame.push(masked | 127);
                frame.extend((payload as u64).to_be_bytes());
            }
        }
        frame.extend(if mask { &[8, 8, 8, 8][..] } else { &[] });
        // Every byte of the payload looks like the start of a close frame.
        frame.extend(vec![0x88; payload]);
        frame
    }

    fn finds(bytes: &[u8], piece: usize) -> bool {
        let mut finder = CloseFrameFinder::default();
        for piece in bytes.chunks(piece) {
            finder.push(piece);
        }
        finder.is_found()
    }

    #[test]
    fn a_close_frame_is_found_behind_frames_of_every_length_in_pieces_of_any_size() {
        for mask in [false, true] {
            let others: Vec<u8> = [(1, 0), (2, 125), (9, 5), (0, 126), (1, 65_535), (2, 70_000)]
                .into_iter()
                .flat_map(|(opcode, payload)| frame(opcode, mask, payload))
                .collect();
            let closed = [&others[..], &frame(8, mask, 2)].concat();
            for piece in [1, 3, 1024, closed.len()] {
                assert!(!finds(&others, piece), "pieces of {piece}");
                assert!(finds(&closed, piece), "pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_frame_of_the_greatest_length_ends_no_reading() {
        let mut finder = CloseFrameFinder::default();
        finder.push(&[0x82, 127]);
        finder.push(&[0xff; 8]);
        finder.push(&[0x88; 100]);
        assert!(!finder.is_found());
    }
}
