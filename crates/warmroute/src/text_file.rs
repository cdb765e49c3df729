//! Files of JSON lines, plain or compressed with zstd.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use simulate::{MOST_TEXT_BYTES, TextError, text_of};

/// Reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextFileError {
    #[error("it cannot be read: {0}")]
    Io(io::Error),
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Returns the text of a file.
pub(crate) fn read(path: &Path) -> Result<String, TextFileError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_TEXT_BYTES + 1).read_to_end(&mut bytes))
        .map_err(TextFileError::Io)?;
    Ok(text_of(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_and_what_is_no_text_is_told_apart() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"one\ntwo\n").unwrap();
        assert_eq!(read(file.path()).unwrap(), "one\ntwo\n");
        std::fs::write(file.path(), b"ab\xff").unwrap();
        assert!(matches!(
            read(file.path()),
            Err(TextFileError::Text(TextError::NotText(2)))
        ));
        assert!(matches!(
            read(Path::new("there is no such file")),
            Err(TextFileError::Io(_))
        ));
    }
}
