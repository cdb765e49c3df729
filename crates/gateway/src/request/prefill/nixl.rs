//! vLLM's NIXL connector: one leg after the other.
//!
//! The prefill worker is asked for one token and keeps the prompt's KV; its reply says where the decode worker fetches it.
//! That, and the prompt's token ids, go into the decode worker's body as they stand in the reply, so nothing is
//! tokenised twice.

use dialect::Edit;

use super::{
    super::{dispatch::Failure, settle::Settle},
    legs::{Legs, Sent, read},
};

/// What makes a request a prefill. A stream's options without a stream are an error at vLLM, and so is a least length of more
/// than the one token.
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

pub(super) async fn send(legs: &Legs<'_>, settle: &mut Settle) -> Sent {
    let decode = match decode_body(legs, settle).await {
        Ok(body) => body,
        Err(failure) => {
            settle.prefill_failed(&failure);
            return Sent::PrefillFailed;
        }
    };
    settle.decode_sent();
    Sent::Decode(Box::new(legs.decode(decode).await))
}

async fn decode_body(legs: &Legs<'_>, settle: &mut Settle) -> Result<bytes::Bytes, Box<Failure>> {
    let reply = legs.prefill(legs.body(&PREFILL)?).await?;
    let reply = read(&reply)?;
    let params = reply.kv_transfer_params.ok_or_else(|| {
        Failure::protocol(
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
    settle.prefill_over(true, reply.usage);
    settle.rewrote(rewrites);
    Ok(body)
}
