//! Section `compat`: compatibility names in replies.

settings::section! {
    /// Section `compat`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CompatSection {
        /// Whose reply headers stand beside ours: `vllm-router` = `x-vllm-router-*`.
        headers: Vec<CompatHeaders> = "[]", live;
        /// Replies say in headers where and how they were routed; `x-request-id` and
        /// `x-warmroute-rewrites` stand there in any case.
        expose_routing_headers: bool = "true", live;
        /// Whose metric families are served too.
        metrics: Vec<CompatMetrics> = "[continuum]", later;
    }
}

impl CompatSection {
    /// Returns whether replies carry `x-vllm-router-*` headers too.
    pub fn vllm_router_headers(&self) -> bool {
        self.headers.contains(&CompatHeaders::VllmRouter)
    }
}

settings::words! {
    /// Router whose reply headers are sent too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CompatHeaders {
        /// `x-vllm-router-*`.
        VllmRouter = "vllm-router",
    }
}

settings::words! {
    /// Router whose metric families are served too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CompatMetrics {
        /// Continuum Router.
        Continuum = "continuum",
    }
}
