//! Checked queries of `/query` and `/query_by_hash`: a namespace, a chain of blocks, and a row
//! filter.

use std::sync::Arc;

use kv_blocks::{HashScheme, Namespace, PromptIdentity, SequenceHash};

use crate::{
    error::CallError,
    field_map::{FieldMap, FieldSpec, missing},
    fields::FieldKind,
    registration::{DEFAULT_TENANT, block_size},
};

/// Fields of `/query`.
pub(crate) const QUERY: &[FieldSpec] = &[
    ("model", FieldKind::Text),
    ("lora_name", FieldKind::Text),
    ("lora_id", FieldKind::Number),
    ("token_ids", FieldKind::Tokens),
    ("tenant_id", FieldKind::Text),
    ("instance_id", FieldKind::Text),
    ("block_size", FieldKind::Number),
    ("cache_salt", FieldKind::Text),
    ("additional_salt", FieldKind::Text),
];

/// Fields of `/query_by_hash`.
pub(crate) const QUERY_BY_HASH: &[FieldSpec] = &[
    ("model", FieldKind::Text),
    ("lora_name", FieldKind::Text),
    ("lora_id", FieldKind::Number),
    ("seq_hashes", FieldKind::Hashes),
    ("block_hash", FieldKind::Hashes),
    ("tenant_id", FieldKind::Text),
    ("instance_id", FieldKind::Text),
    ("block_size", FieldKind::Number),
    ("cache_salt", FieldKind::Text),
    ("additional_salt", FieldKind::Text),
];

/// A query for the overlap of one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverlapQuery {
    pub(crate) tenant: Arc<str>,
    /// If set, the reply has only the row of this instance.
    pub(crate) instance: Option<Arc<str>>,
    pub(crate) namespace: Namespace,
    /// If set, only instances registered with this `additionalsalt` (`Some(None)`: without one) can
    /// have a hit.
    pub(crate) registered_salt: Option<Option<Arc<str>>>,
    pub(crate) chain: Vec<SequenceHash>,
}

impl OverlapQuery {
    /// Builds the query from token ids; a partial block at the end is ignored.
    pub(crate) fn by_tokens(form: &FieldMap, scheme: HashScheme) -> Result<Self, CallError> {
        let tokens = form.tokens("token_ids")?;
        Self::of(form, |size| scheme.chain(None, tokens, size))
    }

    /// Builds the query from rolling hashes; `block_hash` is their name in earlier drafts.
    pub(crate) fn by_hashes(form: &FieldMap) -> Result<Self, CallError> {
        let hashes = match (form.hashes("seq_hashes"), form.hashes("block_hash")) {
            (Some(_), Some(_)) => {
                let message = "block_hash is an older name of seq_hashes: send only seq_hashes";
                return Err(CallError::field("block_hash", message));
            }
            (Some(hashes), None) | (None, Some(hashes)) => hashes,
            (None, None) => return Err(missing("seq_hashes", "a list of rolling sequence hashes")),
        };
        Self::of(form, |_| hashes.iter().copied().map(SequenceHash).collect())
    }

    fn of(
        form: &FieldMap,
        chain: impl FnOnce(kv_blocks::BlockSize) -> Vec<SequenceHash>,
    ) -> Result<Self, CallError> {
        let model = form.required_text("model")?.into();
        let block_size = block_size(form)?;
        // Blocks without a salt of their own have that of the registration, so one of the two is
        // enough to find them. If both are given, the blocks must have the first and their instance
        // must be registered with the second.
        let (own, registered) = (form.text("cache_salt"), form.text("additional_salt"));
        let registered_salt = form
            .has("additional_salt")
            .then(|| registered.map(Arc::from));
        let salt = own.or(registered).map(Arc::from);
        let namespace = Namespace {
            model,
            lora: lora(form)?,
            salt,
            block_size,
            identity: PromptIdentity::Tokens,
        };
        Ok(Self {
            tenant: form.text("tenant_id").unwrap_or(DEFAULT_TENANT).into(),
            instance: form.text("instance_id").map(Arc::from),
            namespace,
            registered_salt,
            chain: chain(block_size),
        })
    }
}

/// Returns the LoRA adapter by its name, or by the number that older engines give it.
fn lora(form: &FieldMap) -> Result<Option<Arc<str>>, CallError> {
    match (form.text("lora_name"), form.number("lora_id")) {
        (Some(_), Some(_)) => Err(CallError::field(
            "lora_id",
            "lora_id is deprecated: send only lora_name",
        )),
        (Some(name), None) => Ok(Some(name.into())),
        // Events without an adapter name use this spelling too; engines number adapters from 1 on.
        (None, Some(number)) if number > 0 => Ok(Some(format!("lora_id:{number}").into())),
        (None, _) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use serde_json::{Value, json};

    use super::*;
    use crate::field_map::Encoding;

    fn query(change: Value) -> Result<OverlapQuery, CallError> {
        read_query(
            QUERY,
            json!({"model": "m", "token_ids": [1, 2, 3, 4, 5], "block_size": 2}),
            change,
        )
    }

    fn by_hash(change: Value) -> Result<OverlapQuery, CallError> {
        read_query(
            QUERY_BY_HASH,
            json!({"model": "m", "seq_hashes": [1, 2], "block_size": 2}),
            change,
        )
    }

    fn read_query(
        fields: &'static [FieldSpec],
        mut body: Value,
        change: Value,
    ) -> Result<OverlapQuery, CallError> {
        for (field, value) in change.as_object().unwrap() {
            body[field] = value.clone();
        }
        let form = FieldMap::read(body.to_string().as_bytes(), Encoding::Json, fields)?;
        if fields == QUERY {
            OverlapQuery::by_tokens(&form, HashScheme::default())
        } else {
            OverlapQuery::by_hashes(&form)
        }
    }

    #[test]
    #[contract("MC3")]
    fn only_complete_blocks_count_and_the_tenant_has_a_default() {
        let parsed = query(json!({})).unwrap();
        assert_eq!(
            (parsed.chain.len(), &*parsed.tenant, parsed.instance),
            (2, "default", None)
        );
    }

    #[test]
    #[contract("MC3")]
    fn a_missing_field_is_named() {
        for field in ["model", "token_ids", "block_size"] {
            assert_eq!(query(json!({field: null})).unwrap_err().field, Some(field));
        }
        for (field, bad) in [
            ("block_size", json!(0)),
            ("block_size", json!(1_u64 << 32)),
            ("model", json!("")),
        ] {
            assert_eq!(query(json!({field: bad})).unwrap_err().field, Some(field));
        }
    }

    #[test]
    #[contract("MC3")]
    fn an_adapter_has_a_name_or_a_number_and_not_both() {
        assert_eq!(
            query(json!({"lora_name": "a", "lora_id": 1}))
                .unwrap_err()
                .field,
            Some("lora_id")
        );
        let lora = |change| query(change).unwrap().namespace.lora;
        assert_eq!(
            lora(json!({"lora_name": "a", "lora_id": null})).as_deref(),
            Some("a")
        );
        assert_eq!(lora(json!({"lora_id": 3})).as_deref(), Some("lora_id:3"));
        for base in [
            json!({}),
            json!({"lora_name": ""}),
            json!({"lora_name": null}),
            json!({"lora_id": 0}),
        ] {
            assert_eq!(lora(base), None);
        }
    }

    #[test]
    #[contract("MC5")]
    fn hashes_have_one_of_two_field_names() {
        assert_eq!(
            by_hash(json!({})).unwrap().chain,
            [SequenceHash(1), SequenceHash(2)]
        );
        let old = by_hash(json!({"seq_hashes": null, "block_hash": ["7"]}));
        assert_eq!(old.unwrap().chain, [SequenceHash(7)]);
        assert_eq!(
            by_hash(json!({"block_hash": [1]})).unwrap_err().field,
            Some("block_hash")
        );
        assert_eq!(
            by_hash(json!({"seq_hashes": null})).unwrap_err().field,
            Some("seq_hashes")
        );
    }
}
