//! The file of the decision log.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::PathBuf,
};

/// A file by its path; opened for every write, so that one that was moved away or deleted is
/// created again.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// Whether the last write failed: the failure is logged once, and may have cut a line.
    failing: bool,
}

impl LogFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            failing: false,
        }
    }

    /// Appends whole lines; without any, only opens the file. Returns false on failure.
    pub(super) fn append(&mut self, lines: &[u8]) -> bool {
        let was_failing = self.failing;
        let result = self.write(lines);
        self.failing = result.is_err();
        match result {
            Ok(()) if was_failing => {
                tracing::info!(path = %self.path.display(), "the decision log is written again")
            }
            Err(error) if !was_failing => {
                tracing::error!(path = %self.path.display(), %error, "the decision log cannot be written: lines are lost");
            }
            _ => {}
        }
        !self.failing
    }

    fn write(&self, lines: &[u8]) -> io::Result<()> {
        if std::fs::metadata(&self.path).is_ok_and(|there| there.file_type().is_fifo()) {
            // Opening a pipe would wait for a reader, and delay the end of the process.
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is a pipe: expected a file",
            ));
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        if self.failing && !lines.is_empty() {
            // Terminates the partial line of the failed write.
            file.write_all(b"\n")?;
        }
        file.write_all(lines)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("V43")]
    fn lines_are_appended_and_a_new_file_is_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut file = LogFile::new(path.clone());
        assert!(
            file.append(b""),
            "a file can be made before there is a line"
        );
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(file.append(b"one\n") && file.append(b"two\n"));
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\n");
        fs::rename(&path, folder.path().join("moved")).unwrap();
        assert!(file.append(b"three\n"));
        assert_eq!(fs::read(&path).unwrap(), b"three\n");
    }

    #[test]
    fn a_failed_write_is_reported_and_the_next_line_is_separate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later").join("log.jsonl");
        let mut file = LogFile::new(path.clone());
        assert!(!file.append(b"lost\n") && !file.append(b"lost\n"));
        fs::create_dir(path.parent().unwrap()).unwrap();
        assert!(file.append(b"kept\n"));
        assert_eq!(fs::read(&path).unwrap(), b"\nkept\n");
        assert!(!LogFile::new(folder.path().to_owned()).append(b"a folder\n"));
    }
}
