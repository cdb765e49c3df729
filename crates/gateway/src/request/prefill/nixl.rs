//! vLLM's NIXL connector: one leg after the other.
//!
//! The prefill worker generates one token and keeps the prompt's KV; its reply says where the
//! decode worker fetches it. These members, and the prompt's token ids, are copied unchanged from
//! the reply into the decode worker's body, so nothing is tokenized twice.

use dialect::Edit;

use super::{
    super::{attempt_failure::AttemptFailure, record::RequestGuard},
    legs::{LegsOutcome, PrefillDecodeLegs, read},
};

/// The edits that make a request a prefill. vLLM rejects stream options without a stream, and a
/// minimum length above the one token.
const PREFILL: [Edit<'_>; 7] = [
    Edit::Set("max_tokens", "1"),
    Edit::Set("max_completion_tokens", "1"),
    Edit::Remove("min_tokens"),
    Edit::Set("stream", "false"),
    Edit::Remove("stream_options"),
    Edit::Set("return_token_ids", "true"),
    Edit::Set(
        "kv_transfer_params",
        r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#,
    ),
];

pub(super) async fn send(legs: &PrefillDecodeLegs<'_>, guard: &mut RequestGuard) -> LegsOutcome {
    let decode = decode_body(legs, guard).await;
    legs.decode_after(decode, guard).await
}

async fn decode_body(
    legs: &PrefillDecodeLegs<'_>,
    guard: &mut RequestGuard,
) -> Result<bytes::Bytes, Box<AttemptFailure>> {
    let reply = legs.prefill(legs.body(&PREFILL)?).await?;
    let reply = read(&reply)?;
    let params = reply.kv_transfer_params.ok_or_else(|| {
        AttemptFailure::protocol(
            "the prefill worker's reply has no kv_transfer_params: is its KV connector on?"
                .to_owned(),
        )
    })?;
    let mut edits = vec![Edit::Set("kv_transfer_params", params.as_str())];
    let mut rewrites = vec!["kv_transfer"];
    if let Some(ids) = reply.prompt_token_ids {
        edits.push(Edit::Set("prompt_token_ids", ids.as_str()));
        rewrites.insert(0, "token_ids");
    }
    let body = legs.body(&edits)?;
    guard.finish_prefill(true, reply.usage);
    guard.record_rewrite(rewrites);
    Ok(body)
}
