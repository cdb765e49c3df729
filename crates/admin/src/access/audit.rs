//! The audit of calls that change something: who called, from where, and what came of it.
//!
//! Each call is a line in the log, and in a file of its own if one is configured. No line has a
//! value of the configuration or of a body: of the configuration in force it has a digest before and
//! after the call.
//!
//! **Invariant**: the file is only appended to. A call never fails for it, and waits for it at most
//! [`LONGEST_WAIT`]; a line that is not written is counted.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use api::openapi::Role;
use axum::{extract::Request, http::StatusCode};
use net::Clock;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{Caller, Operator};
use crate::Control;

/// Longest wait of a call for its line.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Most lines that are being written; a further one waits for one of their places.
const MOST_WAITING: usize = 64;
/// Longest path in a line, in bytes.
const LONGEST_PATH: usize = 512;

/// The file of the audit.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    waiting: Arc<Semaphore>,
    written: AtomicU64,
    failed: AtomicU64,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("admin.audit_log: {} cannot be opened for appending: {error}", path.display())]
pub struct AuditFileError {
    path: PathBuf,
    error: io::Error,
}

/// Where the calls of a listener are audited, beside the log.
#[derive(Clone, Debug, Default)]
pub struct AuditSinks {
    /// The file, if one is configured.
    pub(crate) file: Option<Arc<AuditFile>>,
    /// The configuration in force, where the listener changes it.
    pub(crate) control: Option<Arc<dyn Control>>,
}

/// A call that needs more than the role `read`.
pub(super) struct AuditedCall {
    action: String,
    operator: Operator,
    source: String,
    old: Option<String>,
}

/// One line of the file.
#[derive(Serialize)]
struct AuditLine<'a> {
    at: String,
    action: &'a str,
    caller: &'a str,
    role: &'static str,
    source: &'a str,
    status: u16,
    /// Digest of the configuration in force before the call, and after it.
    old: Option<&'a str>,
    new: Option<&'a str>,
}

impl AuditedCall {
    /// Returns the call if it may change something.
    pub(super) fn of(
        needed: Role,
        operator: &Operator,
        caller: Caller,
        request: &Request,
        sinks: &AuditSinks,
    ) -> Option<Self> {
        let path = request.uri().path();
        let shown = &path[..path.floor_char_boundary(LONGEST_PATH)];
        (needed > Role::Read).then(|| Self {
            action: format!("{} {shown}", request.method()),
            operator: operator.clone(),
            source: match caller.address {
                Some(address) => address.to_string(),
                None => "unix socket".to_owned(),
            },
            old: sinks.digest(),
        })
    }

    /// Writes the line of the call.
    pub(super) async fn write(&self, status: StatusCode, sinks: &AuditSinks, clock: Clock) {
        let new = sinks.digest();
        let line = AuditLine {
            at: net::rfc3339(clock.wall()),
            action: &self.action,
            caller: &self.operator.name,
            role: self.operator.role.as_str(),
            source: &self.source,
            status: status.as_u16(),
            old: self.old.as_deref(),
            new: new.as_deref(),
        };
        tracing::info!(
            target: "warmroute::audit",
            action = line.action,
            caller = line.caller,
            role = line.role,
            source = line.source,
            status = line.status,
            old = line.old,
            new = line.new,
            "operator call"
        );
        if let Some(file) = &sinks.file {
            file.append(&line).await;
        }
    }
}

impl AuditSinks {
    /// Takes the file, if there is one.
    pub fn of(file: Option<Arc<AuditFile>>) -> Self {
        Self {
            file,
            control: None,
        }
    }

    /// Returns a digest of the configuration in force, in which secrets are masked.
    fn digest(&self) -> Option<String> {
        let settings = self.control.as_ref()?.settings();
        let digest = Sha256::digest(settings.to_json().to_string());
        Some(digest[..8].iter().map(|it| format!("{it:02x}")).collect())
    }
}

impl AuditFile {
    /// Takes the path of the file, which is created if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be opened for appending.
    pub fn open(path: PathBuf) -> Result<Arc<Self>, AuditFileError> {
        if let Err(error) = append(&path, &[]) {
            return Err(AuditFileError { path, error });
        }
        Ok(Arc::new(Self {
            path,
            waiting: Arc::new(Semaphore::new(MOST_WAITING)),
            written: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }))
    }

    /// Returns the number of lines that were written, and of those that were not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.written.load(Relaxed), self.failed.load(Relaxed))
    }

    async fn append(self: &Arc<Self>, line: &AuditLine<'_>) {
        let end = Instant::now() + LONGEST_WAIT;
        let waiting = Arc::clone(&self.waiting).acquire_owned();
        let Ok(Ok(permit)) = timeout_at(end, waiting).await else {
            self.count(Err(io::Error::other("too many lines wait for the disk")));
            return;
        };
        // Texts and numbers only.
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        let file = Arc::clone(self);
        let writing = runtime::spawn_blocking(move || {
            file.count(append(&file.path, &bytes));
            drop(permit);
        });
        // A slow disk holds no call up; the line is written when it can be.
        let _ = timeout_at(end, writing).await;
    }

    fn count(&self, written: io::Result<()>) {
        match written {
            Ok(()) => self.written.fetch_add(1, Relaxed),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%error, %path, "a line of the audit file was not written");
                self.failed.fetch_add(1, Relaxed)
            }
        };
    }
}

/// Appends to a file that other users cannot read if it is new. It is opened for each line, so it may
/// be moved away.
fn append(path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use contract_id::contract;

    use super::*;

    fn line(action: &str) -> AuditLine<'_> {
        AuditLine {
            at: "1970-01-01T00:00:00.000Z".to_owned(),
            action,
            caller: "ops",
            role: "admin",
            source: "10.0.0.9",
            status: 200,
            old: Some("0011"),
            new: None,
        }
    }

    #[tokio::test]
    #[contract("S17")]
    async fn lines_are_appended_to_a_file_of_its_own_which_may_be_moved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let file = AuditFile::open(path.clone()).unwrap();
        let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        file.append(&line("POST /a\"\u{2028}")).await;
        file.append(&line("POST /b")).await;
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (&lines[0]["action"], &lines[0]["old"]),
            (&"POST /a\"\u{2028}".into(), &"0011".into())
        );
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        file.append(&line("POST /c")).await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("POST /c") && !text.contains("POST /b"));
        assert_eq!((mode(&path), file.counts()), (0o600, (3, 0)));
    }

    #[tokio::test]
    #[contract("S17")]
    async fn a_line_that_cannot_be_written_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("there").join("audit.jsonl");
        assert!(AuditFile::open(path.clone()).is_err());
        std::fs::create_dir(folder.path().join("there")).unwrap();
        let file = AuditFile::open(path).unwrap();
        std::fs::remove_dir_all(folder.path().join("there")).unwrap();
        file.append(&line("POST /a")).await;
        let all = Arc::clone(&file.waiting)
            .try_acquire_many_owned(64)
            .unwrap();
        file.append(&line("POST /b")).await;
        drop(all);
        assert_eq!(file.counts(), (0, 2));
    }
}
