//! Keeps the end of a long body: the counts of its tokens stand there.

use dialect::Usage;

use super::BodyKind;

/// Bytes that are kept.
const TAIL: usize = 8 * 1024;

/// The last bytes of a body, at most [`TAIL`].
#[derive(Debug, Default)]
pub(super) struct ReplyTail(Vec<u8>);

impl ReplyTail {
    /// Returns the tail of a body that begins with these bytes, if it may be a JSON object.
    pub(super) fn of(kind: BodyKind, first: &[u8]) -> Option<Box<Self>> {
        let is_object = first.trim_ascii_start().starts_with(b"{");
        (kind == BodyKind::Opaque && is_object).then(Box::default)
    }

    /// Takes the next bytes of the body.
    pub(super) fn push(&mut self, data: &[u8]) {
        let last = &data[data.len().saturating_sub(TAIL)..];
        let excess = (self.0.len() + last.len()).saturating_sub(TAIL);
        self.0.drain(..excess);
        self.0.extend_from_slice(last);
    }

    /// Returns the counts of a body that is whole.
    pub(super) fn usage(&self) -> Option<Usage> {
        dialect::usage_from_tail(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S72")]
    fn the_last_bytes_stay_however_they_arrive() {
        let body: Vec<u8> = (0..=250).cycle().take(3 * TAIL).collect();
        for piece in [1, 7, TAIL - 1, TAIL, TAIL + 1, body.len()] {
            let mut tail = ReplyTail::default();
            for (at, data) in body.chunks(piece).enumerate() {
                tail.push(data);
                let so_far = &body[..body.len().min((at + 1) * piece)];
                assert!(tail.0.len() <= TAIL && so_far.ends_with(&tail.0));
            }
            assert_eq!(tail.0.len(), TAIL, "in pieces of {piece}");
        }
    }

    #[test]
    #[contract("S72")]
    fn only_what_may_be_a_long_object_is_kept() {
        for (kind, first, kept) in [
            (BodyKind::Opaque, " \n{\"data\":[", true),
            (BodyKind::Opaque, "[{", false),
            (BodyKind::Opaque, "RIFF", false),
            (BodyKind::Opaque, "", false),
            (BodyKind::Events, "{", false),
        ] {
            let tail = ReplyTail::of(kind, first.as_bytes());
            assert_eq!(tail.is_some(), kept, "{first:?}");
        }
    }
}
