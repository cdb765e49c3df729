//! Sections `logging` and `metrics`.

settings::section! {
    /// Section `logging`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoggingSection {
        /// The least important level that is logged.
        level: LogLevel = "info", live;
        /// How a line looks; `auto` = pretty on a terminal, else JSON.
        format: LogFormat = "auto", restart;
        /// Colours in the pretty form.
        enable_colors: bool = "false", restart;
        /// One line per request.
        requests: bool = "false", live;
    }
}

settings::section! {
    /// Section `metrics`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MetricsSection {
        /// Serve `/metrics`.
        enabled: bool = "true", restart;
        /// Give histograms exemplars.
        exemplars: bool = "true", later;
    }
}

settings::words! {
    /// `logging.level`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LogLevel {
        /// Everything.
        Trace = "trace",
        /// For developers.
        Debug = "debug",
        /// Normal operation.
        Info = "info",
        /// Conditions that deserve an operator's attention.
        Warn = "warn",
        /// Failures.
        Error = "error",
    }
}

settings::words! {
    /// `logging.format`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LogFormat {
        /// Pretty on a terminal, else JSON.
        Auto = "auto",
        /// One JSON object per line.
        Json = "json",
        /// For people.
        Pretty = "pretty",
    }
}
