//! Files of JSON lines, plain or compressed with zstd.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use ruzstd::decoding::{
    StreamingDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

/// Most bytes of a file, and of its decompressed text: some fifty times the longest public trace.
const MOST_BYTES: u64 = 1 << 30;

/// Magic bytes of a compressed file.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Reason why a file cannot be used.
#[derive(Debug)]
pub(crate) enum TextFileError {
    Io(io::Error),
    TooLong,
    NotZstd(String),
    NotText(usize),
}

impl std::fmt::Display for TextFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "it cannot be read: {error}"),
            Self::TooLong => write!(
                f,
                "it holds more than {MOST_BYTES} bytes: cut it into shorter ones"
            ),
            Self::NotZstd(problem) => write!(
                f,
                "it cannot be decompressed ({problem}): expected plain text or zstd"
            ),
            Self::NotText(at) => write!(
                f,
                "byte {at} is no UTF-8: expected JSON lines, plain or compressed with zstd"
            ),
        }
    }
}

/// Returns the text of a file.
pub(crate) fn read(path: &Path) -> Result<String, TextFileError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(TextFileError::Io)?;
    let bytes = within_bounds(bytes)?;
    let text = if bytes.starts_with(&ZSTD) {
        decompressed(&bytes)?
    } else {
        bytes
    };
    String::from_utf8(text)
        .map_err(|error| TextFileError::NotText(error.utf8_error().valid_up_to()))
}

/// Decompresses all frames of a file in order.
fn decompressed(mut rest: &[u8]) -> Result<Vec<u8>, TextFileError> {
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
            Err(error) => return Err(TextFileError::NotZstd(error.to_string())),
        };
        let limit = MOST_BYTES + 1 - text.len() as u64;
        frame
            .by_ref()
            .take(limit)
            .read_to_end(&mut text)
            .map_err(|error| TextFileError::NotZstd(error.to_string()))?;
        text = within_bounds(text)?;
    }
    Ok(text)
}

fn within_bounds(bytes: Vec<u8>) -> Result<Vec<u8>, TextFileError> {
    if bytes.len() as u64 > MOST_BYTES {
        Err(TextFileError::TooLong)
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

    fn read_back(bytes: &[u8]) -> Result<String, TextFileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        read(file.path())
    }

    #[test]
    fn plain_and_compressed_files_read_the_same_also_in_several_frames_with_something_between_them()
    {
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, b'a', b'b', b'c'];
        let framed = [
            compressed("one\n").as_slice(),
            &skippable,
            &compressed("two\n"),
        ]
        .concat();
        assert_eq!(read_back(b"one\ntwo\n").unwrap(), "one\ntwo\n");
        assert_eq!(read_back(&framed).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn what_is_damaged_is_told_apart() {
        let whole = compressed(&"a line\n".repeat(1000));
        assert!(matches!(
            read_back(&whole[..whole.len() - 5]),
            Err(TextFileError::NotZstd(_))
        ));
        assert!(matches!(
            read_back(b"ab\xff"),
            Err(TextFileError::NotText(2))
        ));
        assert!(matches!(
            read(Path::new("there is no such file")),
            Err(TextFileError::Io(_))
        ));
    }
}
