//! Text of JSON lines, plain or compressed with zstd: traces and decision logs.

use std::io::Read;

use ruzstd::decoding::{
    StreamingDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

/// Most bytes of a file, and of its decompressed text: some fifty times the longest public trace.
pub const MOST_TEXT_BYTES: u64 = 1 << 30;

/// Magic bytes of compressed text.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Why bytes are no usable text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// They or the decompressed ones are too many.
    #[error("it holds more than {MOST_TEXT_BYTES} bytes: cut it into shorter ones")]
    TooLong,
    /// They begin like compressed text, and the rest is damaged.
    #[error("it cannot be decompressed ({0}): expected plain text or zstd")]
    NotZstd(String),
    /// They are not UTF-8.
    #[error("byte {0} is no UTF-8: expected JSON lines, plain or compressed with zstd")]
    NotText(usize),
}

/// Returns the text of a file's bytes, decompressed if they are zstd.
///
/// # Errors
///
/// The bytes are damaged, too many, or not UTF-8.
pub fn text_of(bytes: Vec<u8>) -> Result<String, TextError> {
    let bytes = within_bounds(bytes)?;
    let text = if bytes.starts_with(&ZSTD) {
        decompressed(&bytes)?
    } else {
        bytes
    };
    String::from_utf8(text).map_err(|error| TextError::NotText(error.utf8_error().valid_up_to()))
}

/// Decompresses all frames in order.
fn decompressed(mut rest: &[u8]) -> Result<Vec<u8>, TextError> {
    let mut text = Vec::new();
    while !rest.is_empty() {
        let mut frame = match StreamingDecoder::new(&mut rest) {
            Ok(frame) => frame,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                rest = rest.get(length as usize..).unwrap_or_default();
                continue;
            }
            Err(error) => return Err(TextError::NotZstd(error.to_string())),
        };
        let limit = MOST_TEXT_BYTES + 1 - text.len() as u64;
        frame
            .by_ref()
            .take(limit)
            .read_to_end(&mut text)
            .map_err(|error| TextError::NotZstd(error.to_string()))?;
        text = within_bounds(text)?;
    }
    Ok(text)
}

fn within_bounds(bytes: Vec<u8>) -> Result<Vec<u8>, TextError> {
    if bytes.len() as u64 > MOST_TEXT_BYTES {
        Err(TextError::TooLong)
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn compressed(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    #[test]
    fn plain_and_compressed_text_read_the_same_also_in_several_frames_with_something_between_them()
    {
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, b'a', b'b', b'c'];
        let framed = [
            compressed("one\n").as_slice(),
            &skippable,
            &compressed("two\n"),
        ]
        .concat();
        assert_eq!(text_of(b"one\ntwo\n".to_vec()).unwrap(), "one\ntwo\n");
        assert_eq!(text_of(framed).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn what_is_damaged_is_told_apart() {
        let whole = compressed(&"a line\n".repeat(1000));
        assert!(matches!(
            text_of(whole[..whole.len() - 5].to_vec()),
            Err(TextError::NotZstd(_))
        ));
        assert_eq!(text_of(b"ab\xff".to_vec()), Err(TextError::NotText(2)));
    }
}
