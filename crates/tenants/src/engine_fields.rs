//! Fields of a body that control the engine, and which of them a tenant may send.

settings::words! {
    /// A field of a body that controls the engine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum EngineField {
        /// The order of the engine's queue.
        Priority = "priority",
        /// The rank that computes the request.
        DataParallelRank = "data_parallel_rank",
        /// The same, by its later name.
        RoutedDpRank = "routed_dp_rank",
        /// The id by which the engine tells requests apart.
        RequestId = "request_id",
        /// The same at SGLang.
        Rid = "rid",
        /// A prompt as tensors, which the engine unpacks.
        PromptEmbeds = "prompt_embeds",
        /// A template, which the engine runs.
        ChatTemplate = "chat_template",
        /// Code of SGLang, which the engine runs.
        CustomLogitProcessor = "custom_logit_processor",
        /// Names of code, which the engine imports.
        LogitsProcessors = "logits_processors",
        /// The model's inner states in the reply.
        ReturnHiddenStates = "return_hidden_states",
        /// Arguments of the code that reads media.
        MmProcessorKwargs = "mm_processor_kwargs",
        /// The engine that has the prompt's KV.
        KvTransferParams = "kv_transfer_params",
        /// The engine that has the encoder's output.
        EcTransferParams = "ec_transfer_params",
        /// The host of SGLang's prefill engine.
        BootstrapHost = "bootstrap_host",
        /// Its port.
        BootstrapPort = "bootstrap_port",
        /// The transfer among those of the host.
        BootstrapRoom = "bootstrap_room",
    }
}

/// Why a field needs a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    /// It overrides a decision.
    Override,
    /// It makes the engine run or reveal what other requests do not.
    Content,
    /// It names another engine, and blocks there that may be others'.
    Transfer,
}

impl EngineField {
    /// All fields.
    pub const ALL: [Self; 16] = [
        Self::Priority,
        Self::DataParallelRank,
        Self::RoutedDpRank,
        Self::RequestId,
        Self::Rid,
        Self::PromptEmbeds,
        Self::ChatTemplate,
        Self::CustomLogitProcessor,
        Self::LogitsProcessors,
        Self::ReturnHiddenStates,
        Self::MmProcessorKwargs,
        Self::KvTransferParams,
        Self::EcTransferParams,
        Self::BootstrapHost,
        Self::BootstrapPort,
        Self::BootstrapRoom,
    ];

    /// Returns the field with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.as_str() == name)
    }

    /// Returns whether it controls KV transfer between engines, which also an only tenant may not.
    pub fn is_of_transfer(self) -> bool {
        self.kind() == FieldKind::Transfer
    }

    fn kind(self) -> FieldKind {
        match self {
            Self::Priority
            | Self::DataParallelRank
            | Self::RoutedDpRank
            | Self::RequestId
            | Self::Rid => FieldKind::Override,
            Self::PromptEmbeds
            | Self::ChatTemplate
            | Self::CustomLogitProcessor
            | Self::LogitsProcessors
            | Self::ReturnHiddenStates
            | Self::MmProcessorKwargs => FieldKind::Content,
            Self::KvTransferParams
            | Self::EcTransferParams
            | Self::BootstrapHost
            | Self::BootstrapPort
            | Self::BootstrapRoom => FieldKind::Transfer,
        }
    }
}

/// The fields that a tenant may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineFieldSet(u16);

impl EngineFieldSet {
    /// Returns those that are listed for a tenant, and those that it may send anyway: as the only
    /// tenant, or by the scope `overrides`.
    pub(crate) fn granted(listed: &[EngineField], is_alone: bool, may_override: bool) -> Self {
        let is_granted = |field: &EngineField| {
            listed.contains(field)
                || match field.kind() {
                    FieldKind::Override => is_alone || may_override,
                    FieldKind::Content => is_alone,
                    FieldKind::Transfer => false,
                }
        };
        let granted = EngineField::ALL.into_iter().filter(is_granted);
        Self(granted.fold(0, |set, field| set | bit(field)))
    }

    pub(crate) fn has(self, field: EngineField) -> bool {
        self.0 & bit(field) != 0
    }
}

fn bit(field: EngineField) -> u16 {
    1 << field as u16
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S43")]
    fn each_field_is_granted_to_an_only_tenant_by_the_scope_or_by_the_list() {
        for field in EngineField::ALL {
            assert_eq!(EngineField::named(field.as_str()), Some(field));
            let has = |listed: &[EngineField], is_alone, may_override| {
                EngineFieldSet::granted(listed, is_alone, may_override).has(field)
            };
            let kind = field.kind();
            let of = |kinds: &[FieldKind]| kinds.contains(&kind);
            assert!(!has(&[], false, false), "{field:?}");
            assert_eq!(
                has(&[], true, true),
                of(&[FieldKind::Override, FieldKind::Content])
            );
            assert_eq!(has(&[], false, true), of(&[FieldKind::Override]));
            for (is_alone, may_override) in [(false, false), (false, true), (true, true)] {
                assert!(has(&[field], is_alone, may_override), "{field:?}");
            }
            let others: Vec<_> = (EngineField::ALL.into_iter())
                .filter(|other| *other != field)
                .collect();
            assert!(!has(&others, false, false), "{field:?}");
        }
        assert_eq!(EngineField::named("lora_path"), None);
    }
}
