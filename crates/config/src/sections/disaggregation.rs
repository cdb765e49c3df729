//! Section `disaggregation`: one worker computes the prompt, another generates the reply.

settings::section! {
    /// Section `disaggregation`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DisaggregationSection {
        /// `auto`: split requests of models that have prefill workers. `off`: never split; prefill
        /// workers get no requests.
        mode: DisaggregationMode = "auto", live;
        /// Connector by which engines transfer a prompt's KV.
        connector: Connector = "nixl", live;
        /// Uncached tokens up to which a decode worker computes the prompt itself. 0: off.
        uncached_token_threshold: u32 = "0", live;
        /// Handling of a request whose prefill fails or has no worker. `decode_only`: its decode
        /// worker computes the prompt.
        fallback: PrefillFallback = "decode_only", live;
    }
}

impl DisaggregationSection {
    /// Returns whether requests are split for models that have prefill workers.
    pub fn enabled(&self) -> bool {
        self.mode == DisaggregationMode::Auto
    }
}

settings::words! {
    /// When requests are split.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DisaggregationMode {
        /// For models that have prefill workers.
        Auto = "auto",
        /// Never.
        Off = "off",
    }
}

settings::words! {
    /// Transfer of a prompt's KV between engines.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Connector {
        /// vLLM's NIXL connector: the prefill's reply names the source for the decode worker.
        Nixl = "nixl",
        /// vLLM's Mooncake connector: a transfer id joins both workers, through the prefill
        /// worker's bootstrap server.
        Mooncake = "mooncake",
        /// SGLang: a room of the prefill worker's bootstrap server joins both workers.
        Sglang = "sglang",
        /// TensorRT-LLM: the context request's reply has the state for the generation request.
        Trtllm = "trtllm",
    }
}

settings::words! {
    /// What becomes of a request whose prefill fails.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PrefillFallback {
        /// Its decode worker computes the prompt.
        DecodeOnly = "decode_only",
    }
}
