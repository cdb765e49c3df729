//! Keys with a common prefix, page by page.

use redis::{Pipeline, Value};

use crate::{Operation, RedisFault, pool::PoolShared};

/// Keys that the server scans for one page.
const PAGE: usize = 500;
/// Maximum number of pages: twice some twenty million keys. A scan on a faulty server may never
/// end.
const MOST_PAGES: usize = 80_000;

/// The keys under a prefix, each at least once. Keys written during the scan may be included.
#[derive(Debug)]
pub(crate) struct KeyPages<'a> {
    shared: &'a PoolShared,
    pattern: String,
    /// `None` after the last page.
    cursor: Option<Vec<u8>>,
    read: usize,
}

impl<'a> KeyPages<'a> {
    /// Starts a scan; `prefix` is not a pattern.
    pub(crate) fn new(shared: &'a PoolShared, prefix: &str) -> Self {
        Self {
            shared,
            pattern: format!("{prefix}*"),
            cursor: Some(b"0".to_vec()),
            read: 0,
        }
    }

    /// Returns the next page; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, RedisFault> {
        let Some(cursor) = self.cursor.take() else {
            return Ok(None);
        };
        if self.read == MOST_PAGES {
            return Err(RedisFault::unusable("last page of keys"));
        }
        self.read += 1;
        let mut page = Pipeline::new();
        page.ignore_errors()
            .cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(&self.pattern)
            .arg("COUNT")
            .arg(PAGE);
        let answers = self.shared.send(Operation::Get, &page).await?;
        let Some((next, keys)) = read(answers) else {
            let fault = RedisFault::unusable("page of keys");
            self.shared.refused(&fault);
            return Err(fault);
        };
        self.cursor = (next != b"0").then_some(next);
        Ok(Some(keys))
    }
}

fn read(answers: Vec<Value>) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let Some(Value::Array(page)) = answers.into_iter().next() else {
        return None;
    };
    let [Value::BulkString(next), Value::Array(keys)] = <[Value; 2]>::try_from(page).ok()? else {
        return None;
    };
    let keys = keys.into_iter().filter_map(|key| match key {
        Value::BulkString(key) => Some(key),
        _ => None,
    });
    Some((next, keys.collect()))
}
