//! `GET /admin/kv-index/digest` and `/dump`.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use api::{KvIndexDigest, KvIndexDumpRow, TargetDigest};
use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use fleet::Fleet;
use hyper::body::Frame;
use indexer::Indexer;
use kv_blocks::WorkerId;
use kv_index::{DumpCursor, DumpRow, KvIndex, shown_hash};
use tokio::task::{JoinError, JoinHandle};

use crate::{AdminParts, KvIndexParts, response};

/// Returns the digests. The index updates them with every change: reading them costs nothing,
/// however large the index is.
pub(crate) async fn digest(
    State(fleet): State<Arc<Fleet>>,
    State(parts): State<KvIndexParts>,
) -> Response {
    let names = names(&fleet, &parts.indexer);
    let rows = parts.index.digest().into_iter();
    let targets = rows.map(|row| TargetDigest {
        worker: names.get(&row.target.worker).cloned(),
        dp_rank: row.target.rank.0,
        tier: row.tier.as_str().into(),
        blocks: row.blocks,
        digest: format!("{:016x}", row.digest),
    });
    response::json(&KvIndexDigest {
        targets: targets.collect(),
    })
}

/// Returns one line per membership. The index is read in pieces with its lock free in between, so
/// the dump of an index that changes meanwhile is not one instant.
pub(crate) async fn dump(
    State(fleet): State<Arc<Fleet>>,
    State(parts): State<KvIndexParts>,
) -> Response {
    let names = names(&fleet, &parts.indexer);
    let lines = DumpBody::new(parts.index, names);
    (
        [(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-ndjson"),
        )],
        Body::new(lines),
    )
        .into_response()
}

impl AdminParts {
    /// Returns the rows of `/admin/kv-index/dump` as one JSON list. Computes for some microseconds a
    /// block, with the index's lock free in between: call it off the async threads.
    pub fn index_dump(&self) -> Vec<u8> {
        let index = Arc::clone(&self.kv_index.index);
        let names = names(&self.fleet, &self.kv_index.indexer);
        list(DumpProgress::new(index, names))
    }
}

/// Returns the rows of a dump as one JSON list.
fn list(mut dump: DumpProgress) -> Vec<u8> {
    let mut list = vec![b'['];
    loop {
        let lines = dump.lines();
        if lines.is_empty() {
            break;
        }
        list.extend(lines);
    }
    // JSON escapes the line feeds of strings: each one ends a row.
    for byte in list.iter_mut().filter(|byte| **byte == b'\n') {
        *byte = b',';
    }
    match list.last_mut() {
        Some(last) if *last == b',' => *last = b']',
        _ => list.push(b']'),
    }
    list
}

/// Size of one chunk of a dump, in bytes.
const CHUNK: usize = 64 << 10;

/// A dump as a reply body. Each chunk is made on a blocking thread after the reader has taken the
/// one before: a slow reader occupies one chunk and no thread, and a reader that leaves ends the
/// dump.
#[derive(Debug)]
struct DumpBody {
    next: JoinHandle<(DumpProgress, Vec<u8>)>,
    ended: bool,
}

impl DumpBody {
    fn new(index: Arc<KvIndex>, names: HashMap<WorkerId, Arc<str>>) -> Self {
        Self {
            next: DumpProgress::new(index, names).chunk(),
            ended: false,
        }
    }
}

impl hyper::body::Body for DumpBody {
    type Data = Bytes;
    type Error = JoinError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, JoinError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let made = ready!(Pin::new(&mut self.next).poll(context));
        Poll::Ready(match made {
            Ok((dump, lines)) if !lines.is_empty() => {
                self.next = dump.chunk();
                Some(Ok(Frame::data(lines.into())))
            }
            Ok(_) => {
                self.ended = true;
                None
            }
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
        })
    }
}

/// Progress of a dump.
#[derive(Debug)]
struct DumpProgress {
    index: Arc<KvIndex>,
    names: HashMap<WorkerId, Arc<str>>,
    cursor: DumpCursor,
}

impl DumpProgress {
    fn new(index: Arc<KvIndex>, names: HashMap<WorkerId, Arc<str>>) -> Self {
        Self {
            index,
            names,
            cursor: DumpCursor::default(),
        }
    }

    /// Makes the next chunk on a blocking thread; an empty one is the end.
    fn chunk(mut self) -> JoinHandle<(Self, Vec<u8>)> {
        runtime::spawn_blocking(move || {
            let lines = self.lines();
            (self, lines)
        })
    }

    fn lines(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        while lines.len() < CHUNK
            && let Some(rows) = self.index.dump(&mut self.cursor)
        {
            rows.iter().for_each(|row| self.line(row, &mut lines));
        }
        lines
    }

    /// Writes one row. A salt is a secret between its tenants and the engine: only its digest is
    /// shown, and the hashes under it are keyed.
    fn line(&self, row: &DumpRow, lines: &mut Vec<u8>) {
        let shown = |hash| shown_hash(&row.namespace, hash).to_string();
        let line = KvIndexDumpRow {
            model: Arc::clone(&row.namespace.model),
            lora: row.namespace.lora.clone(),
            salt: row.salt_digest.clone(),
            block_size: row.namespace.block_size.tokens(),
            worker: self.names.get(&row.target.worker).cloned(),
            dp_rank: row.target.rank.0,
            tier: row.tier.as_str().into(),
            depth: row.depth,
            hash: shown(row.hash),
            parent: row.parent.map(shown),
        };
        // Neither strings nor numbers can fail, and a vector takes every byte.
        let _ = serde_json::to_writer(&mut *lines, &line);
        lines.push(b'\n');
    }
}

fn names(fleet: &Fleet, indexer: &Indexer) -> HashMap<WorkerId, Arc<str>> {
    let snapshot = fleet.snapshot();
    let workers = snapshot
        .workers
        .iter()
        .map(|worker| (worker.id, Arc::clone(&worker.name)));
    workers.chain(indexer.names()).collect()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper::body::Body as _;
    use kv_blocks::{BlockSize, DpRank, EngineHash, IndexUpdate, StoredBlocks, Target, Tier};
    use kv_index::IndexSettings;
    use serde_json::{Value, json};

    use super::*;

    fn index(blocks: u32, salt: Option<&str>) -> Arc<KvIndex> {
        let index = KvIndex::new(IndexSettings::default());
        let target = Target {
            worker: WorkerId(3),
            rank: DpRank(0),
        };
        index.register(target, "m".into());
        index.apply(
            target,
            &IndexUpdate::Stored(StoredBlocks {
                hashes: (0..u64::from(blocks)).map(EngineHash).collect(),
                parent: None,
                tokens: (0..blocks).collect(),
                block_size: BlockSize::new(1).unwrap(),
                lora: None,
                media: Vec::new(),
                salt: salt.map(Arc::from),
                tier: Tier::Device,
            }),
        );
        Arc::new(index)
    }

    async fn chunk(lines: &mut DumpBody) -> Option<Bytes> {
        let frame = poll_fn(|context| Pin::new(&mut *lines).poll_frame(context)).await?;
        Some(frame.unwrap().into_data().unwrap())
    }

    #[tokio::test]
    async fn a_dump_has_chunks_of_whole_lines_and_holds_no_lock_between_them() {
        let index = index(5000, Some("secret"));
        let names = HashMap::from([(WorkerId(3), Arc::from("w3"))]);
        let mut lines = DumpBody::new(Arc::clone(&index), names);
        let (mut rows, mut chunks) = (Vec::new(), 0);
        while let Some(bytes) = chunk(&mut lines).await {
            chunks += 1;
            assert!(bytes.len() < 2 * CHUNK && bytes.ends_with(b"\n"));
            let text = std::str::from_utf8(&bytes).unwrap();
            assert!(!text.contains("secret"));
            rows.extend(
                text.lines()
                    .map(|line| serde_json::from_str::<Value>(line).unwrap()),
            );
            // An update would wait for ever if the dump held the lock.
            index.apply(
                Target {
                    worker: WorkerId(9),
                    rank: DpRank(0),
                },
                &IndexUpdate::Cleared,
            );
        }
        assert!(chunks > 5, "{chunks}");
        rows.sort_by_key(|row| row["depth"].as_u64());
        assert_eq!(rows.len(), 5000);
        assert_eq!(
            (&rows[7]["worker"], &rows[7]["tier"], &rows[7]["block_size"]),
            (&json!("w3"), &json!("device"), &json!(1))
        );
        assert_eq!(rows[7]["parent"], rows[6]["hash"]);
        assert_eq!(rows[7]["salt"].as_str().map(str::len), Some(16));
        assert!(chunk(&mut lines).await.is_none());
    }

    #[test]
    fn a_dump_as_a_list_has_all_rows_and_none_of_an_empty_index() {
        for blocks in [0, 1, 5000] {
            let list = list(DumpProgress::new(index(blocks, None), HashMap::new()));
            let rows: Vec<KvIndexDumpRow> = serde_json::from_slice(&list).unwrap();
            assert_eq!(rows.len(), blocks as usize);
        }
    }

    #[tokio::test]
    async fn an_empty_index_is_an_empty_dump() {
        assert!(
            chunk(&mut DumpBody::new(index(0, None), HashMap::new()))
                .await
                .is_none()
        );
    }
}
