//! `GET /v1/models` of a worker.

use std::sync::Arc;

use serde_json::Value;

use crate::{ServedLora, ServedModel};

/// Entries read from one list; the rest is ignored.
const MOST_ENTRIES: usize = 4096;
/// Longest accepted id or root, in bytes.
const LONGEST_NAME: usize = 1024;

/// A worker's model list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelList {
    pub(crate) models: Vec<ServedModel>,
    pub(crate) loras: Vec<ServedLora>,
}

/// Reads a list defensively: an entry that is no object with a usable `id` is skipped, repeated ids
/// count once. `None`: the reply is no model list at all.
pub(crate) fn read(body: &[u8]) -> Option<ModelList> {
    let reply: Value = serde_json::from_slice(body).ok()?;
    // OpenAI's shape, or (seen in small servers) the bare array.
    let entries = reply.get("data").unwrap_or(&reply).as_array()?;
    let mut list = ModelList::default();
    for entry in entries.iter().take(MOST_ENTRIES) {
        let Some(id) = name(entry, "id") else {
            continue;
        };
        if list.models.iter().any(|known| known.id == id)
            || list.loras.iter().any(|known| known.id == id)
        {
            continue;
        }
        let created = entry.get("created").and_then(Value::as_i64).unwrap_or(0);
        match name(entry, "parent") {
            Some(parent) => list.loras.push(ServedLora {
                id,
                parent,
                created,
            }),
            None => list.models.push(ServedModel {
                id,
                root: name(entry, "root"),
                max_model_len: entry
                    .get("max_model_len")
                    .and_then(Value::as_u64)
                    .and_then(|len| u32::try_from(len).ok())
                    .filter(|len| *len > 0),
                created,
                owned_by: name(entry, "owned_by").unwrap_or_else(|| "unknown".into()),
            }),
        }
    }
    Some(list)
}

fn name(entry: &Value, key: &str) -> Option<Arc<str>> {
    let text = entry.get(key)?.as_str()?;
    let usable = !text.is_empty() && text.len() <= LONGEST_NAME && !text.contains(char::is_control);
    usable.then(|| text.into())
}

impl ModelList {
    /// Restricts the list to the models that the configuration allows (contract CH30): an empty
    /// `only` means the whole list. A configured model that the worker does not list is still
    /// served when the worker lists nothing.
    pub(crate) fn restricted_to(mut self, only: &[Arc<str>]) -> Self {
        if only.is_empty() {
            return self;
        }
        if self.models.is_empty() && self.loras.is_empty() {
            self.models = only
                .iter()
                .map(|id| ServedModel {
                    id: Arc::clone(id),
                    root: None,
                    max_model_len: None,
                    created: 0,
                    owned_by: "unknown".into(),
                })
                .collect();
            return self;
        }
        self.models.retain(|model| only.contains(&model.id));
        self.loras
            .retain(|lora| only.contains(&lora.id) || only.contains(&lora.parent));
        self
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const VLLM: &str = r#"{"object":"list","data":[
        {"id":"tiny","object":"model","created":1795194607,"owned_by":"vllm","root":"models/tiny-qwen","parent":null,"max_model_len":2048,"permission":[{"id":"modelperm-1"}]},
        {"id":"ad1","object":"model","created":1795194608,"owned_by":"vllm","root":"adapters/ad1","parent":"tiny","max_model_len":null,"permission":[]}]}"#;

    #[test]
    fn base_models_and_adapters_are_distinguished_by_parent() {
        let list = read(VLLM.as_bytes()).unwrap();
        assert_eq!(list.models.len(), 1);
        assert_eq!(&*list.models[0].id, "tiny");
        assert_eq!(list.models[0].root.as_deref(), Some("models/tiny-qwen"));
        assert_eq!(list.models[0].max_model_len, Some(2048));
        assert_eq!(&*list.models[0].owned_by, "vllm");
        assert_eq!(
            list.loras,
            [ServedLora {
                id: "ad1".into(),
                parent: "tiny".into(),
                created: 1_795_194_608
            }]
        );
    }

    #[test]
    fn invalid_entries_are_skipped_and_invalid_replies_are_no_list() {
        let list = read(
            br#"{"data":[1,null,{},{"id":7},{"id":""},{"id":"a\u0007b"},{"id":"m","max_model_len":-1},{"id":"m"}]}"#,
        );
        let list = list.unwrap();
        assert_eq!(list.models.len(), 1);
        assert_eq!(list.models[0].max_model_len, None);
        for nonsense in ["", "{", "7", "{}", r#"{"data":{}}"#, "<html>"] {
            assert_eq!(read(nonsense.as_bytes()), None, "{nonsense}");
        }
        assert_eq!(
            read(br#"{"object":"list","data":[]}"#),
            Some(ModelList::default())
        );
    }

    #[test]
    fn a_bare_array_is_read_too() {
        assert_eq!(&*read(br#"[{"id":"m"}]"#).unwrap().models[0].id, "m");
    }

    #[test]
    #[contract("CH30")]
    fn configured_models_restrict_what_a_worker_serves() {
        let list = read(VLLM.as_bytes()).unwrap();
        assert_eq!(list.clone().restricted_to(&[]), list);
        let only = list.clone().restricted_to(&["ad1".into()]);
        assert!(only.models.is_empty());
        assert_eq!(only.loras.len(), 1);
        assert!(list.restricted_to(&["other".into()]).models.is_empty());
        let unlisted = ModelList::default().restricted_to(&["m".into()]);
        assert_eq!(&*unlisted.models[0].id, "m");
    }
}
