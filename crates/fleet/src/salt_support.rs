//! Whether workers keep the cached blocks of requests with different salts apart.

use config::EngineKind;

/// What was observed of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaltSupport {
    /// A prompt found its own blocks, and under another salt none of them.
    Honoured,
    /// A prompt found blocks of another salt.
    Ignored,
    /// Neither was observed.
    #[default]
    Unknown,
}

impl SaltSupport {
    /// Judges by the cached tokens that an engine reports for a prompt that it has computed before:
    /// `control` under the same salt as then, `other` under another one. Without a hit of the
    /// control nothing is shown.
    pub fn observed(control: Option<u64>, other: Option<u64>) -> Self {
        let found = |cached: Option<u64>| cached.is_some_and(|tokens| tokens > 0);
        match (found(control), found(other)) {
            (true, true) => Self::Ignored,
            (true, false) => Self::Honoured,
            (false, _) => Self::Unknown,
        }
    }

    /// Returns what both observations show together.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ignored, _) | (_, Self::Ignored) => Self::Ignored,
            (Self::Honoured, Self::Honoured) => Self::Honoured,
            _ => Self::Unknown,
        }
    }

    /// Returns the word used in replies and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Honoured => "honoured",
            Self::Ignored => "ignored",
            Self::Unknown => "unknown",
        }
    }
}

/// What workers of a kind do with a salt in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaltHandling {
    /// They refuse members that they do not know, so they get none.
    Refuses,
    /// They have no salts, and accept the member.
    Ignores,
    /// They may honour it; each is to be observed.
    Takes,
}

/// Returns what a worker of this kind does with a salt; `host`: the `Host` of its requests. Services
/// with an account of the operator refuse members that they do not know.
pub fn salt_handling(kind: EngineKind, host: &[u8]) -> SaltHandling {
    match kind {
        EngineKind::Azure | EngineKind::Anthropic | EngineKind::Gemini => SaltHandling::Refuses,
        EngineKind::Openai if host.ends_with(b"openai.com") => SaltHandling::Refuses,
        EngineKind::Llamacpp | EngineKind::Ollama | EngineKind::Lmstudio => SaltHandling::Ignores,
        EngineKind::Vllm
        | EngineKind::Sglang
        | EngineKind::Trtllm
        | EngineKind::Openai
        | EngineKind::Mlxcel
        | EngineKind::Continuum
        | EngineKind::Generic => SaltHandling::Takes,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S51", "S59")]
    fn every_kind_gets_the_salt_but_services_that_refuse_it_and_kinds_without_salts_are_known() {
        for kind in EngineKind::ALL {
            let expected = match kind {
                EngineKind::Azure | EngineKind::Anthropic | EngineKind::Gemini => {
                    SaltHandling::Refuses
                }
                EngineKind::Llamacpp | EngineKind::Ollama | EngineKind::Lmstudio => {
                    SaltHandling::Ignores
                }
                _ => SaltHandling::Takes,
            };
            assert_eq!(salt_handling(kind, b"10.0.0.5:8000"), expected, "{kind:?}");
        }
        let service = salt_handling(EngineKind::Openai, b"api.openai.com");
        assert_eq!(service, SaltHandling::Refuses);
    }

    #[test]
    #[contract("S59")]
    fn a_salt_is_honoured_only_where_the_same_salt_hits_and_another_one_does_not() {
        use SaltSupport::{Honoured, Ignored, Unknown};
        for (control, other, expected) in [
            (Some(32), Some(0), Honoured),
            // Some engines report cached tokens only where there are some.
            (Some(32), None, Honoured),
            (Some(32), Some(16), Ignored),
            (Some(0), Some(0), Unknown),
            (None, None, Unknown),
            (None, Some(16), Unknown),
        ] {
            let found = SaltSupport::observed(control, other);
            assert_eq!(found, expected, "{control:?}, {other:?}");
        }
        for (one, other, expected) in [
            (Honoured, Honoured, Honoured),
            (Honoured, Unknown, Unknown),
            (Unknown, Ignored, Ignored),
            (Ignored, Honoured, Ignored),
        ] {
            assert_eq!(one.and(other), expected, "{one:?}, {other:?}");
        }
    }
}
