//! Requests of a trace in Mooncake's layout, plain or compressed with zstd.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
};

/// Number of blocks (of 16 tokens) per id of the trace (of 512 tokens).
pub(super) const BLOCKS_PER_ID: usize = 32;
const BLOCK_TOKENS: usize = 16;
/// A quarter of these still has a half for the warm-up and a half to measure.
const LEAST_REQUESTS: usize = 8;

/// One request's prompt.
#[derive(Debug)]
pub(super) struct TraceRecord {
    /// Whole blocks of 16 tokens, at most [`BLOCKS_PER_ID`] an id.
    pub(super) blocks: usize,
    /// Ids in place of the tokens: an id identifies its 512 tokens and everything before them.
    pub(super) hash_ids: Vec<u64>,
}

/// An unusable trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// No file with a known name.
    #[error("no trace {} in {}: expected one of these, plain or with .zst behind it", names.join(" or "), folder.display())]
    Missing {
        folder: PathBuf,
        names: &'static [&'static str],
    },
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The trace has nothing to measure.
    #[error("{}: {requests} requests with a block of {BLOCK_TOKENS} tokens: expected at least {LEAST_REQUESTS}", path.display())]
    Short { path: PathBuf, requests: usize },
    /// A line is not a request.
    #[error("{} line {line}: {error}; expected an object with input_length and hash_ids", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        error: serde_json::Error,
    },
}

#[derive(serde::Deserialize)]
struct TraceLine {
    input_length: usize,
    hash_ids: Vec<u64>,
}

/// Returns the first of `names` that exists in the folder, plain or compressed.
pub(super) fn find(folder: &Path, names: &'static [&'static str]) -> Result<PathBuf, TraceError> {
    let candidates = names
        .iter()
        .flat_map(|name| [folder.join(name), folder.join(format!("{name}.zst"))]);
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| TraceError::Missing {
        folder: folder.into(),
        names,
    })
}

/// Reads all requests with at least one whole block.
pub(super) fn read(path: &Path) -> Result<Vec<TraceRecord>, TraceError> {
    let unreadable = |error| TraceError::Unreadable {
        path: path.into(),
        error,
    };
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let text: Box<dyn io::Read> = if path.extension().is_some_and(|end| end == "zst") {
        Box::new(zstd::stream::read::Decoder::with_buffer(file).map_err(unreadable)?)
    } else {
        Box::new(file)
    };
    let mut records = vec![];
    for (number, line) in BufReader::new(text).lines().enumerate() {
        let line = line.map_err(unreadable)?;
        if line.trim().is_empty() {
            continue;
        }
        let request: TraceLine = serde_json::from_str(&line).map_err(|error| TraceError::Line {
            path: path.into(),
            line: number + 1,
            error,
        })?;
        let blocks =
            (request.input_length / BLOCK_TOKENS).min(request.hash_ids.len() * BLOCKS_PER_ID);
        if blocks > 0 {
            records.push(TraceRecord {
                blocks,
                hash_ids: request.hash_ids,
            });
        }
    }
    if records.len() < LEAST_REQUESTS {
        return Err(TraceError::Short {
            path: path.into(),
            requests: records.len(),
        });
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use super::*;

    const LINE: &str =
        r#"{"timestamp": 0, "input_length": 530, "output_length": 5, "hash_ids": [7, 8]}"#;

    #[test]
    fn a_trace_reads_the_same_plain_and_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("trace.jsonl");
        let text = format!("{LINE}\n").repeat(LEAST_REQUESTS);
        fs::write(&plain, &text).unwrap();
        let compressed = folder.path().join("other.jsonl.zst");
        let mut encoder =
            zstd::stream::Encoder::new(fs::File::create(&compressed).unwrap(), 3).unwrap();
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap();

        for (path, name) in [(plain, "trace.jsonl"), (compressed, "other.jsonl")] {
            assert_eq!(find(folder.path(), Vec::leak(vec![name])).unwrap(), path);
            let records = read(&path).unwrap();
            assert_eq!((records.len(), records[0].blocks), (LEAST_REQUESTS, 33));
            assert_eq!(records[0].hash_ids, [7, 8]);
        }
    }

    #[test]
    fn a_line_that_is_no_request_is_named_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        fs::write(&path, format!("{LINE}\n{{\"input_length\": 3}}\n")).unwrap();
        assert!(matches!(read(&path), Err(TraceError::Line { line: 2, .. })));
    }
}
