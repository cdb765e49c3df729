//! The source of blocks that an engine reads instead of computing them, as it or its sidecar is told.
//!
//! The router chooses the source among its own workers and moves nothing itself. A client can name
//! none: the field is refused like others of KV transfer, and the header is not forwarded.

use std::num::NonZeroU16;

use bytes::Bytes;
use dialect::{Dialect, Edit, RequestView};
use http::HeaderValue;
use kv_blocks::DpRank;
use net::Address;
use routing::FetchMode;
use serde_json::json;

use super::{
    accept::AcceptedRequest, dispatch::AttemptTarget, prefill::Handover, record::RequestGuard,
};

/// The entry in the rewrites header.
pub(super) const REWRITE: &str = "kv_transfer";

/// Port of vLLM's P2P tier, for the first rank of a worker (`VLLM_P2P_SIDE_CHANNEL_PORT`).
const P2P_PORT: NonZeroU16 = NonZeroU16::new(5710).expect("not zero");

/// How an engine is told from which one to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KvSource {
    /// By this value of `kv_transfer_params`.
    Params(String),
    /// By this value of a header.
    Header(HeaderValue),
}

impl KvSource {
    /// Names `source` in the way of this mode; `id` is the read's own. `None`: it has no address.
    pub(super) fn of(mode: FetchMode, source: &AttemptTarget, id: u64) -> Option<Self> {
        let (url, rank) = (&source.worker.connection.url, source.target.rank);
        match mode {
            FetchMode::Off => None,
            FetchMode::VllmP2p => {
                let host = url.host()?;
                let first = source.worker.p2p_port.unwrap_or(P2P_PORT);
                let port = port_of(first.get(), rank)?;
                let params = json!({
                    "remote_kv_source": {
                        "kv_request_id": format!("fetch-{id:016x}"),
                        "remote_host": host,
                        "remote_port": port,
                    }
                });
                Some(Self::Params(params.to_string()))
            }
            FetchMode::LlmD => {
                let Address::Tcp { host, port } = url.address() else {
                    return None;
                };
                // A sidecar of several ranks finds the rank of a source by its port.
                let port = port_of(port, rank)?;
                let address = Address::Tcp { host, port }.to_string();
                HeaderValue::try_from(address).ok().map(Self::Header)
            }
        }
    }
}

/// Returns the port of a rank, where the ports of a worker's ranks follow each other.
fn port_of(first: u16, rank: DpRank) -> Option<u16> {
    first.checked_add(u16::try_from(rank.0).ok()?)
}

/// Returns whether an engine may be told to read the blocks of a request: a chat or a completion of
/// one prompt, whose body is here as a whole and has no fields of KV transfer of its own.
pub(super) fn may_fetch(
    client: Dialect,
    call: &AcceptedRequest,
    view: &RequestView<'_>,
    handover: &Handover,
) -> bool {
    matches!(client, Dialect::Chat | Dialect::Completions)
        && call.rest.is_none()
        && matches!(handover, Handover::Possible)
        && view.kv.transfer_fields.paths().next().is_none()
}

/// Returns the body with the source in it, if it is named there.
pub(super) fn with_source(
    body: Bytes,
    source: Option<&KvSource>,
    guard: &mut RequestGuard,
) -> Bytes {
    let Some(KvSource::Params(params)) = source else {
        return body;
    };
    match dialect::splice(&body, &[Edit::Set("kv_transfer_params", params)]) {
        Ok(changed) => {
            guard.record_rewrite(vec![REWRITE]);
            changed.into()
        }
        // It is sent unchanged, and its blocks are computed.
        Err(_) => body,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract_id::contract;

    use super::*;
    use crate::request::test_support;

    fn source(number: u32, rank: u32, port: Option<u16>) -> AttemptTarget {
        let mut target = test_support::attempt_target(number);
        target.target.rank = DpRank(rank);
        Arc::make_mut(&mut target.worker).p2p_port = port.and_then(NonZeroU16::new);
        target
    }

    #[test]
    fn vllm_is_told_the_host_of_the_source_and_the_port_of_its_rank() {
        for (rank, port, expected) in [(0, None, 5710), (3, None, 5713), (1, Some(7000), 7001)] {
            let named = KvSource::of(FetchMode::VllmP2p, &source(2, rank, port), 0xab);
            let Some(KvSource::Params(params)) = &named else {
                panic!("{named:?}");
            };
            let found: serde_json::Value = serde_json::from_str(params).expect("JSON");
            let expected = json!({
                "remote_kv_source": {
                    "kv_request_id": "fetch-00000000000000ab",
                    "remote_host": "127.0.0.1",
                    "remote_port": expected,
                }
            });
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_sidecar_is_told_the_address_of_the_source_and_of_its_rank_in_a_header() {
        for (rank, expected) in [(0, "127.0.0.1:9002"), (3, "127.0.0.1:9005")] {
            let named = KvSource::of(FetchMode::LlmD, &source(2, rank, None), 1);
            let expected = HeaderValue::from_static(expected);
            assert_eq!(named, Some(KvSource::Header(expected)));
        }
    }

    #[test]
    fn a_rank_without_a_port_is_no_source() {
        let beyond = source(2, 1, Some(u16::MAX));
        assert_eq!(KvSource::of(FetchMode::VllmP2p, &beyond, 1), None);
        let beyond = source(2, 60_000, None);
        for mode in [FetchMode::VllmP2p, FetchMode::LlmD] {
            assert_eq!(KvSource::of(mode, &beyond, 1), None, "{mode:?}");
        }
    }

    #[test]
    fn nothing_is_named_while_it_is_off_and_no_source_without_an_address() {
        assert_eq!(KvSource::of(FetchMode::Off, &source(2, 0, None), 1), None);
        let mut local = source(2, 0, None);
        let worker = Arc::make_mut(&mut local.worker);
        worker.connection.url = "unix:///run/engine.sock".parse().expect("a URL");
        for mode in [FetchMode::VllmP2p, FetchMode::LlmD] {
            assert_eq!(KvSource::of(mode, &local, 1), None, "{mode:?}");
        }
    }

    #[test]
    #[contract("S43")]
    fn a_request_with_fields_of_kv_transfer_of_its_own_is_not_given_a_source() {
        let may = |body: &'static str, client: Dialect| {
            let call = test_support::call(body);
            let view = dialect::view(client, body.as_bytes()).expect("a request");
            may_fetch(client, &call, &view, &Handover::of(&view))
        };
        let chat = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
        assert!(may(chat, Dialect::Chat));
        assert!(may(r#"{"model":"m","prompt":"hi"}"#, Dialect::Completions));
        for (body, client) in [
            (
                r#"{"model":"m","prompt":"hi","kv_transfer_params":{"remote_kv_source":{}}}"#,
                Dialect::Completions,
            ),
            (
                r#"{"model":"m","prompt":"hi","vllm_xargs":{"kv_transfer_params":{}}}"#,
                Dialect::Completions,
            ),
            (r#"{"model":"m","prompt":["a","b"]}"#, Dialect::Completions),
            (r#"{"model":"m","prompt":"hi","n":2}"#, Dialect::Completions),
            (r#"{"model":"m","input":"hi"}"#, Dialect::Embeddings),
        ] {
            assert!(!may(body, client), "{body}");
        }
    }
}
