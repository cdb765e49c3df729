//! A body that is collected.

use bytes::{Bytes, BytesMut};

/// A body under construction: a single frame stays as it is, several are joined.
#[derive(Debug, Default)]
pub struct BodyBuffer {
    first: Bytes,
    joined: BytesMut,
}

impl BodyBuffer {
    /// Returns the number of bytes so far.
    pub fn len(&self) -> usize {
        if self.joined.is_empty() {
            self.first.len()
        } else {
            self.joined.len()
        }
    }

    /// Returns whether there are no bytes yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a frame.
    pub fn push(&mut self, data: Bytes) {
        if self.is_empty() {
            self.first = data;
            return;
        }
        if self.joined.is_empty() {
            self.joined.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.joined.extend_from_slice(&data);
    }

    /// Returns the body.
    pub fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() {
            self.first
        } else {
            self.joined.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_one_frame_is_not_copied_and_several_are_joined() {
        let frame = Bytes::from(vec![7; 10]);
        let mut several = BodyBuffer::default();
        several.push(frame.clone());
        assert_eq!(several.len(), 10);
        several.push(frame.clone());
        assert_eq!(several.into_bytes(), [7; 20].as_slice());
        let mut one = BodyBuffer::default();
        one.push(frame.clone());
        assert_eq!(one.into_bytes().as_ptr(), frame.as_ptr());
    }
    #[test]
    fn empty_frames_change_nothing() {
        let mut buffer = BodyBuffer::default();
        buffer.push(Bytes::new());
        assert!(buffer.is_empty());
        for frame in ["", "a", "", "bc", ""] {
            buffer.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!(buffer.len(), 3);
        assert_eq!(buffer.into_bytes(), "abc");
        assert_eq!(BodyBuffer::default().into_bytes(), "");
    }
}
