//! The controller's replies, parsed leniently: an invalid entry is skipped alone.
//!
//! **Invariant**: no more than [`MOST_INSTANCES`] entries are read of any reply.

use serde_json::Value;

/// Entry limit of one reply.
pub const MOST_INSTANCES: usize = 4096;
/// Size limit of an occupancy reply, in bytes: some 200 for an entry.
pub(crate) const WORKERS_BYTES: usize = 1 << 20;
/// Size limit of a lookup reply, in bytes: some 60 for an entry.
pub(crate) const LOOKUP_BYTES: usize = 256 << 10;

/// The chunks of one rank of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankChunks {
    pub(crate) instance: String,
    pub(crate) keys: u64,
}

/// A reply of an unexpected form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer has no {missing}: use the address of an LMCache controller")]
pub(crate) struct ReplyError {
    missing: &'static str,
}

/// Parses `{"workers": [{"instance_id", "worker_id", "key_count", ..}], ..}`, or the list alone.
pub(crate) fn workers(body: &[u8]) -> Result<Vec<RankChunks>, ReplyError> {
    let missing = ReplyError {
        missing: "list of workers",
    };
    let read: Value = serde_json::from_slice(body).map_err(|_| missing)?;
    let list = read
        .get("workers")
        .unwrap_or(&read)
        .as_array()
        .ok_or(missing)?;
    let one = |entry: &Value| {
        Some(RankChunks {
            instance: entry.get("instance_id")?.as_str()?.to_owned(),
            keys: entry.get("key_count")?.as_u64()?,
        })
    };
    Ok(list.iter().take(MOST_INSTANCES).filter_map(one).collect())
}

/// Parses `{"layout_info": {instance: [location, matched tokens]}, ..}`: each instance with the
/// largest count in its value, as some versions list one per location.
pub(crate) fn layout(body: &[u8]) -> Result<Vec<(String, u64)>, ReplyError> {
    let missing = ReplyError {
        missing: "layout_info",
    };
    let read: Value = serde_json::from_slice(body).map_err(|_| missing)?;
    let layout = read
        .get("layout_info")
        .and_then(Value::as_object)
        .ok_or(missing)?;
    let one = |(instance, value): (&String, &Value)| Some((instance.clone(), largest(value, 3)?));
    Ok(layout.iter().take(MOST_INSTANCES).filter_map(one).collect())
}

/// Returns the largest whole number in lists and mappings, down to a nesting of `depth`.
fn largest(value: &Value, depth: u8) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::Array(parts) if depth > 0 => parts
            .iter()
            .filter_map(|part| largest(part, depth - 1))
            .max(),
        Value::Object(parts) if depth > 0 => parts
            .values()
            .filter_map(|part| largest(part, depth - 1))
            .max(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;

    /// A reply of LMCache 0.5.6.
    const WORKERS: &str = r#"{"workers": [{"instance_id": "vllm-001", "worker_id": 0, "ip": "10.0.0.1", "port": 8500,
        "peer_init_url": null, "registration_time": 1.5, "last_heartbeat_time": 2.5, "key_count": 120},
        {"instance_id": "vllm-002", "worker_id": 0, "ip": "10.0.0.2", "port": 8500, "peer_init_url": "h:1",
        "registration_time": 1.5, "last_heartbeat_time": 2.5, "key_count": 0}], "total_count": 2}"#;

    fn chunk(instance: &str, keys: u64) -> RankChunks {
        RankChunks {
            instance: instance.to_owned(),
            keys,
        }
    }

    #[test]
    #[contract("V29")]
    fn the_chunks_of_each_instance_are_read_and_an_invalid_entry_affects_only_itself() {
        assert_eq!(
            workers(WORKERS.as_bytes()),
            Ok(vec![chunk("vllm-001", 120), chunk("vllm-002", 0)])
        );
        let odd = r#"[{"instance_id": "a", "key_count": 3}, {"instance_id": 7, "key_count": 3}, {"instance_id": "b"},
            {"instance_id": "c", "key_count": -1}, {"instance_id": "d", "key_count": 1.5}, null, "e"]"#;
        assert_eq!(workers(odd.as_bytes()), Ok(vec![chunk("a", 3)]));
        for broken in ["", "{", "{}", "{\"workers\": {}}", "7", "<html>"] {
            assert!(workers(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    #[contract("V30")]
    fn the_holders_of_a_prompt_are_read_in_every_documented_form() {
        let value = r#"{"event_id": "Lookup1", "layout_info": {"vllm-001": ["LocalCPUBackend", 768], "vllm-002":
            {"LocalCPUBackend": 256, "LocalDiskBackend": 512}, "vllm-003": 64, "x": ["LocalCPUBackend"], "y": null}}"#;
        let mut read = layout(value.as_bytes()).expect("an answer");
        read.sort();
        let expected = [("vllm-001", 768), ("vllm-002", 512), ("vllm-003", 64)];
        assert_eq!(
            read,
            expected.map(|(instance, tokens)| (instance.to_owned(), tokens))
        );
        assert_eq!(
            layout(br#"{"event_id": "1", "layout_info": {}}"#),
            Ok(Vec::new())
        );
        for broken in [
            "",
            "{}",
            "{\"res\": \"vllm-001\"}",
            "{\"layout_info\": []}",
            "[]",
        ] {
            assert!(layout(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    #[contract("V29", "V30")]
    fn the_number_of_entries_read_is_bounded() {
        let rows: Vec<String> = (0..2 * MOST_INSTANCES)
            .map(|n| format!(r#"{{"instance_id": "{n}", "key_count": 1}}"#))
            .collect();
        assert_eq!(
            workers(format!("[{}]", rows.join(",")).as_bytes()).map(|read| read.len()),
            Ok(MOST_INSTANCES)
        );
        let rows: Vec<String> = (0..2 * MOST_INSTANCES)
            .map(|n| format!(r#""{n}": ["c", 1]"#))
            .collect();
        let body = format!(r#"{{"layout_info": {{{}}}}}"#, rows.join(","));
        assert_eq!(
            layout(body.as_bytes()).map(|read| read.len()),
            Ok(MOST_INSTANCES)
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, text in r#"[\[\]{}",:0-9a-z_]{0,60}"#) {
            let _ = (workers(&bytes), layout(&bytes));
            let _ = (workers(text.as_bytes()), layout(format!(r#"{{"layout_info": {text}}}"#).as_bytes()));
        }
    }
}
