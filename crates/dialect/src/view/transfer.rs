//! Fields that control KV transfer between engines.

use super::key::Key;

/// These fields name hosts and blocks of other engines: a client's values could reach the caches of
/// others.
const IN_BODY: [Key; 9] = [
    Key::KvTransferParams,
    Key::EcTransferParams,
    Key::BootstrapHost,
    Key::BootstrapPort,
    Key::BootstrapRoom,
    Key::BootstrapPair,
    Key::DisaggregatedParams,
    Key::KvRouterHint,
    Key::EncoderUrls,
];

/// Where vLLM's sampling parameters carry them, and their names in errors.
const IN_SAMPLING: [(&str, &str); 5] = [
    (
        "kv_transfer_params",
        "sampling_params.extra_args.kv_transfer_params",
    ),
    (
        "ec_transfer_params",
        "sampling_params.extra_args.ec_transfer_params",
    ),
    (
        "bootstrap_host",
        "sampling_params.extra_args.bootstrap_host",
    ),
    (
        "bootstrap_port",
        "sampling_params.extra_args.bootstrap_port",
    ),
    (
        "bootstrap_room",
        "sampling_params.extra_args.bootstrap_room",
    ),
];

/// The same in vLLM's further arguments of a request, whose members its KV connectors read.
const IN_ARGUMENTS: [(&str, &str); 5] = [
    ("kv_transfer_params", "vllm_xargs.kv_transfer_params"),
    ("ec_transfer_params", "vllm_xargs.ec_transfer_params"),
    ("bootstrap_host", "vllm_xargs.bootstrap_host"),
    ("bootstrap_port", "vllm_xargs.bootstrap_port"),
    ("bootstrap_room", "vllm_xargs.bootstrap_room"),
];

/// The fields of a body that control KV transfer between engines (S43).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferFields(u32);

impl TransferFields {
    pub(super) fn in_body(has: impl Fn(Key) -> bool) -> Self {
        Self(bits(0, IN_BODY.into_iter().map(has)))
    }

    pub(super) fn in_sampling(has: impl Fn(&str) -> bool) -> Self {
        let found = IN_SAMPLING.into_iter().map(|(name, _)| has(name));
        Self(bits(IN_BODY.len(), found))
    }

    pub(super) fn in_arguments(has: impl Fn(&str) -> bool) -> Self {
        let found = IN_ARGUMENTS.into_iter().map(|(name, _)| has(name));
        Self(bits(IN_BODY.len() + IN_SAMPLING.len(), found))
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns their paths in the body.
    pub fn paths(self) -> impl Iterator<Item = &'static str> {
        let further = IN_SAMPLING.into_iter().chain(IN_ARGUMENTS);
        let all = (IN_BODY.into_iter().map(Key::name)).chain(further.map(|(_, path)| path));
        all.enumerate()
            .filter(move |(at, _)| self.0 & (1_u32 << *at) != 0)
            .map(|(_, path)| path)
    }
}

/// Returns the bits of the fields that are there; `first`: the place of the first one.
fn bits(first: usize, found: impl Iterator<Item = bool>) -> u32 {
    (first..)
        .zip(found)
        .filter(|(_, is_there)| *is_there)
        .fold(0, |bits, (at, _)| bits | (1_u32 << at))
}
