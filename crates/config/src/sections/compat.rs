//! Section `compat`: compatibility names in replies.

settings::section! {
    /// Section `compat`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CompatSection {
        /// Routers whose reply headers are sent in addition: `vllm-router` adds `x-vllm-router-*`.
        headers: Vec<CompatHeaders> = "[]", live;
        /// Send reply headers that describe the routing. `x-request-id` and `x-warmroute-rewrites`
        /// are always sent.
        expose_routing_headers: bool = "true", live;
        /// Routers whose metric families are served in addition.
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
