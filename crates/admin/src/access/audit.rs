//! The audit of calls that change something: who called, from where, and what came of it.
//!
//! Each call is a line in the log, and in a file of its own if one is configured. No line has a
//! value of the configuration or of a body: of the configuration in force it has a digest before and
//! after the call.
//!
//! **Invariants**: the file is only appended to. A call never fails for it, and waits for it at most
//! [`LONGEST_WAIT`]; a line that is not written is counted. Refused calls, of which there may be any
//! number, have few places of their own and few lines in a minute.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use api::openapi::Role;
use axum::{
    extract::{Query, Request},
    http::{StatusCode, Uri},
};
use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::{Caller, Operator};
use crate::Control;

/// Longest wait of a call for its line.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Most lines that are being written; a further one waits for one of their places.
const MOST_WAITING: usize = 64;
/// Most lines of refused calls that are being written; a further one is dropped.
const MOST_REFUSED: usize = 4;
/// Most lines of refused calls in a minute, which cannot fill the disk.
const MOST_REFUSED_IN_A_MINUTE: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// Longest path in a line, and longest query, in bytes.
const LONGEST_PART: usize = 512;
/// Parameters of audited calls. Any other one is masked: its caller may have put a token there.
const SHOWN_PARAMETERS: [&str; 7] = [
    "tenant", "model", "probe", "salts", "worker", "format", "snapshot",
];
const MASK: &str = "***";

/// The file of the audit.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    waiting: Arc<Semaphore>,
    refused: Arc<Semaphore>,
    refused_in_a_minute: Mutex<MinuteCount>,
    /// Held while a line is written.
    write_lock: Mutex<()>,
    written: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// The lines of refused calls since the beginning of a minute.
#[derive(Debug)]
struct MinuteCount {
    began: Moment,
    lines: u32,
}

/// What became of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineCounts {
    pub(crate) written: u64,
    pub(crate) failed: u64,
    /// Lines of refused calls beyond their bound.
    pub(crate) dropped: u64,
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
    /// Whether its role does not allow it.
    is_refused: bool,
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
        (needed > Role::Read).then(|| Self {
            action: format!("{} {}", request.method(), shown_target(request.uri())),
            operator: operator.clone(),
            source: match caller.address {
                Some(address) => address.to_string(),
                None => "unix socket".to_owned(),
            },
            old: sinks.digest(),
            is_refused: operator.role < needed,
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
        match &sinks.file {
            Some(file) if self.is_refused => file.append_refused(&line, clock.now()).await,
            Some(file) => file.append(&line).await,
            None => {}
        }
    }
}

/// Returns path and query as they stand in a line.
fn shown_target(uri: &Uri) -> String {
    let path = uri.path();
    let mut shown = path[..path.floor_char_boundary(LONGEST_PART)].to_owned();
    let query = shown_query(uri);
    if !query.is_empty() {
        shown.push('?');
        shown.push_str(&query[..query.floor_char_boundary(LONGEST_PART)]);
    }
    shown
}

/// Returns the query as it was sent, with a mask in the place of each parameter that is not known.
fn shown_query(uri: &Uri) -> String {
    let Ok(Query(decoded)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
        return MASK.to_owned();
    };
    // Those that are empty are none.
    let sent = uri.query().unwrap_or_default().split('&');
    let sent = sent.filter(|parameter| !parameter.is_empty());
    let shown = sent.zip(&decoded).map(|(parameter, (name, _))| {
        if SHOWN_PARAMETERS.contains(&name.as_str()) {
            parameter
        } else {
            MASK
        }
    });
    shown.collect::<Vec<_>>().join("&")
}

impl MinuteCount {
    /// Counts one more line, if there may be one.
    fn admit(&mut self, now: Moment) -> bool {
        if now.since(self.began) >= MINUTE {
            (self.began, self.lines) = (now, 0);
        }
        let has_room = self.lines < MOST_REFUSED_IN_A_MINUTE;
        self.lines += u32::from(has_room);
        has_room
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
            refused: Arc::new(Semaphore::new(MOST_REFUSED)),
            refused_in_a_minute: Mutex::new(MinuteCount {
                began: Moment::START,
                lines: 0,
            }),
            write_lock: Mutex::new(()),
            written: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }))
    }

    /// Returns what became of the lines.
    pub(crate) fn counts(&self) -> LineCounts {
        LineCounts {
            written: self.written.load(Relaxed),
            failed: self.failed.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }

    async fn append(self: &Arc<Self>, line: &AuditLine<'_>) {
        let end = Instant::now() + LONGEST_WAIT;
        let waiting = Arc::clone(&self.waiting).acquire_owned();
        let Ok(Ok(place)) = timeout_at(end, waiting).await else {
            self.count(Err(io::Error::other("too many lines wait for the disk")));
            return;
        };
        self.write(line, place, end).await;
    }

    /// Appends the line of a refused call, unless there are too many of them.
    async fn append_refused(self: &Arc<Self>, line: &AuditLine<'_>, now: Moment) {
        let place = Arc::clone(&self.refused).try_acquire_owned();
        let may_write = place.is_ok() && self.refused_in_a_minute.lock().admit(now);
        match place {
            Ok(place) if may_write => {
                self.write(line, place, Instant::now() + LONGEST_WAIT).await;
            }
            _ => {
                self.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    async fn write(
        self: &Arc<Self>,
        line: &AuditLine<'_>,
        place: OwnedSemaphorePermit,
        end: Instant,
    ) {
        // Texts and numbers only.
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        let file = Arc::clone(self);
        let writing = runtime::spawn_blocking(move || {
            let writing = file.write_lock.lock();
            let written = append(&file.path, &bytes);
            drop(writing);
            file.count(written);
            drop(place);
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
/// be moved away. After a line that was cut, by a crash or a full disk, the bytes begin a new one.
fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    if ends_within_a_line(path) {
        return file.write_all(&[b"\n".as_slice(), bytes].concat());
    }
    file.write_all(bytes)
}

/// Returns whether the end of the last line is missing. Of what cannot be read, or is no file, that
/// is not known.
fn ends_within_a_line(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|it| it.is_file());
    is_file && last_byte(path).is_ok_and(|last| last != b'\n')
}

/// Returns the last byte of a file; of an empty one an error.
fn last_byte(path: &Path) -> io::Result<u8> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last[0])
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

    fn counts(written: u64, failed: u64, dropped: u64) -> LineCounts {
        LineCounts {
            written,
            failed,
            dropped,
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
        assert_eq!((mode(&path), file.counts()), (0o600, counts(3, 0, 0)));
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
        assert_eq!(file.counts(), counts(0, 2, 0));
    }

    #[tokio::test]
    #[contract("S17")]
    async fn refused_calls_take_no_place_of_allowed_ones_and_few_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let file = AuditFile::open(path.clone()).unwrap();
        for _ in 0..1000 {
            file.append_refused(&line("POST /refused"), Moment::START)
                .await;
        }
        file.append(&line("POST /allowed")).await;
        assert_eq!(file.counts(), counts(61, 0, 940));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().last().unwrap().contains("POST /allowed"));
        // A minute later there may be others, but not while all of their places are taken.
        let later = Moment::START + MINUTE;
        file.append_refused(&line("POST /refused"), later).await;
        let all = Arc::clone(&file.refused).try_acquire_many_owned(4).unwrap();
        file.append_refused(&line("POST /refused"), later).await;
        file.append(&line("POST /allowed")).await;
        drop(all);
        assert_eq!(file.counts(), counts(63, 0, 941));
    }

    #[tokio::test]
    #[contract("S17")]
    async fn after_a_line_that_was_cut_the_next_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let cut = "{\"at\":\"1970-01-01T00";
        // By the end of an earlier process, and by a full disk while this one runs.
        std::fs::write(&path, cut).unwrap();
        let file = AuditFile::open(path.clone()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{cut}\n"));
        file.append(&line("POST /a")).await;
        append(&path, cut.as_bytes()).unwrap();
        file.append(&line("POST /b")).await;
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[2]), (4, cut, cut), "{text}");
        for (line, action) in [(lines[1], "POST /a"), (lines[3], "POST /b")] {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["action"], action);
        }
    }

    #[test]
    #[contract("S17", "S81")]
    fn a_line_has_what_the_query_names_and_no_parameter_that_could_be_a_secret() {
        let long = "x".repeat(2 * LONGEST_PART);
        let long_query = format!("/a?tenant={long}");
        let long_path = format!("/{long}?probe=true");
        for (target, shown) in [
            ("/a", "/a".to_owned()),
            ("/a?", "/a".to_owned()),
            ("/a?tenant=b&model=m", "/a?tenant=b&model=m".to_owned()),
            ("/a?%74enant=b%26", "/a?%74enant=b%26".to_owned()),
            ("/a?token=sk-1&tenant=b", "/a?***&tenant=b".to_owned()),
            ("/a?sk-1&&probe=true", "/a?***&probe=true".to_owned()),
            (
                &*long_query,
                format!("/a?tenant={}", &long[..LONGEST_PART - 7]),
            ),
            (
                &*long_path,
                format!("/{}?probe=true", &long[..LONGEST_PART - 1]),
            ),
        ] {
            let uri: Uri = target.parse().unwrap();
            assert_eq!(shown_target(&uri), shown, "{target}");
        }
    }
}
