//! What goes through every key of the view. It takes its time and nobody waits for it.

use std::sync::Arc;

use redis::{Pipeline, Value};

use super::{
    keys::{KEY_PREFIX, is_of_tiers},
    reply::bytes,
};
use crate::{Operation, RedisFault, pool::Shared};

/// Keys that the server looks at for one page.
const PAGE: usize = 500;
/// Pages at most: two keys each of some ten million prefixes, twice over. A server that never comes to an end has none.
const MOST_PAGES: usize = 80_000;

/// What goes.
#[derive(Debug)]
pub(super) enum Sweep {
    Everything,
    Backend(Arc<str>),
}

/// Goes through it once. What is written meanwhile may stay or go.
pub(super) async fn sweep(shared: &Shared, what: &Sweep) -> Result<(), RedisFault> {
    let mut cursor = b"0".to_vec();
    for _ in 0..MOST_PAGES {
        let mut page = Pipeline::new();
        page.ignore_errors().cmd("SCAN").arg(&cursor).arg("MATCH").arg(format!("{KEY_PREFIX}*")).arg("COUNT").arg(PAGE);
        let answers = shared.ask(Operation::Get, &page).await?;
        let Some((next, keys)) = read_page(&answers) else {
            let fault = RedisFault::unusable("page of keys");
            shared.refused(&fault);
            return Err(fault);
        };
        let mut removal = Pipeline::new();
        removal.ignore_errors();
        for key in keys {
            match (what, is_of_tiers(key)) {
                (_, None) => {}
                (Sweep::Everything, Some(_)) => drop(removal.cmd("UNLINK").arg(key)),
                (Sweep::Backend(name), Some(false)) => drop(removal.cmd("ZREM").arg(key).arg(&**name)),
                (Sweep::Backend(name), Some(true)) => drop(removal.cmd("HDEL").arg(key).arg(&**name)),
            }
        }
        if !removal.is_empty() {
            shared.ask(Operation::Delete, &removal).await?;
        }
        if next == b"0" {
            return Ok(());
        }
        cursor = next.to_vec();
    }
    Err(RedisFault::unusable("last page of keys"))
}

fn read_page(answers: &[Value]) -> Option<(&[u8], impl Iterator<Item = &[u8]>)> {
    let [Value::Array(page)] = answers else { return None };
    let [Value::BulkString(next), Value::Array(keys)] = &page[..] else { return None };
    Some((next, keys.iter().filter_map(bytes)))
}
