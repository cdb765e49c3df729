//! Sections `logging` and `metrics`.

use settings::ListenSetting;

settings::section! {
    /// Section `logging`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoggingSection {
        /// Lowest level that is logged.
        level: LogLevel = "info", live;
        /// Format of log lines. `auto`: `pretty` on a terminal, otherwise `json`.
        format: LogFormat = "auto", restart;
        /// Use colours in the format `pretty`.
        enable_colors: bool = "false", restart;
        /// Log one line for each request.
        requests: bool = "false", live;
    }
}

settings::section! {
    /// Section `metrics`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MetricsSection {
        /// Serve `/metrics`.
        enabled: bool = "true", restart;
        /// Address that serves only `/metrics`, beside the admin listener and with its token and
        /// TLS. Any address but loopback requires `admin.token_file`. Unset: `/metrics` is on the
        /// admin listener only.
        listen: Option<ListenSetting> = "~", restart;
        /// Add exemplars to histograms.
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
