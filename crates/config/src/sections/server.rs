//! Sections `server` and `admin`: the listeners.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use settings::{
    CheckedValue, ListenSetting, Setting, ValueKind,
    kinds::{ANY_PORT, AUTO, AUTO_OR_OFF, SECONDS_OR_ZERO, int, size},
    word_later,
};

use super::ListenerTls;

settings::section! {
    /// Section `server`.
    #[derive(Clone, Debug)]
    pub struct ServerSection {
        /// Where clients connect; port 0 = chosen by the system. Anything but loopback needs
        /// `insecure_open`.
        listen: ListenSetting = "127.0.0.1:8080", restart;
        /// Port of the data listener; `auto` = the one in `listen`.
        port: Option<u16> = "auto" in ANY_PORT, restart;
        /// Listen off loopback although no API key protects the listener (`--insecure-open`).
        insecure_open: bool = "false", restart;
        /// More addresses to listen at.
        also_listen: Vec<ListenSetting> = "[]", restart;
        /// Address that serves only `/livez` and `/readyz`, from a thread of its own: plainly, and
        /// to everyone.
        probe_listen: Option<ListenSetting> = "~", restart;
        /// TLS of the data listener; a unix socket stays as it is.
        tls: Option<ListenerTls>, restart;
        /// Longest request head; above: 431.
        max_head_bytes: usize = "32KiB" in size(8 << 10, 1 << 20), live;
        /// Longest request body; above: 413.
        max_body_bytes: usize = "32MiB" in size(1, 4 << 30), live;
        /// Bytes of the bodies of all running requests; what does not fit: 503. At least
        /// `max_body_bytes`. A part is left to small bodies and to other clients: docs/limits.md.
        max_held_bytes: u64 = "1GiB" in size(1, 1 << 50), live;
        /// Most completions of one prompt (`n`); above: 400; 0 = off.
        max_choices: u64 = "128", live;
        /// Most prompts, or texts to compute, in one request; above: 400; 0 = off.
        max_prompts: u64 = "2048", live;
        /// Most texts to stop at (`stop`, `stop_sequences`); above: 400; 0 = off.
        max_stop: u64 = "64", live;
        /// Most open client connections; `auto` = from the limit on file descriptors. At the limit
        /// the longest idle one yields to a new one.
        max_connections: Option<NonZeroU32> = "auto"
            in ValueKind::WordOr(AUTO, &int(1, 10_000_000)), restart;
        /// An idle client connection is closed after this.
        keep_alive: Duration = "75s", live;
        /// A request head must be complete within this: the first one of a connection from its
        /// beginning, later ones from their first byte.
        head_timeout: Duration = "10s", live;
        /// A request body must be complete within this; one that comes at less than 1 KiB/s is
        /// refused earlier.
        body_timeout: Duration = "60s", live;
        /// A client that ends its side of the connection after its request still gets the answer.
        /// Few clients do that, and who closes looks the same: such a request is not aborted before
        /// something is written to it.
        half_close: bool = "false", live;
        /// How long running streams may go on after a stop signal.
        drain_timeout: Duration = "300s" in SECONDS_OR_ZERO, restart;
        /// How long new connections are still served after SIGTERM or `POST /admin/drain`, while
        /// readiness says no: whoever balances load needs as long to notice. SIGINT does not wait.
        drain_grace: Duration = "5s" in SECONDS_OR_ZERO, restart;
        /// Memory of the process (RSS) near which things are given up: at 80 % half of the caches,
        /// at 90 % what caches would take in and bodies above 1 MiB (503), at 95 % new requests
        /// (503), at 98 % new connections; `auto` = 90 % of the control group's limit or of the
        /// machine's memory, whichever is less; `off` = no budget.
        memory_budget: MemoryBudget = "auto", live;
        /// Threads that serve requests; `auto` = one per core.
        runtime_threads: Option<NonZeroU32> = "auto"
            in ValueKind::WordOr(AUTO, &int(1, 1_024)), restart;
    }
}

settings::section! {
    /// Section `admin`.
    #[derive(Clone, Debug)]
    pub struct AdminSection {
        /// Where operators connect. Anything but loopback needs `token_file`.
        listen: ListenSetting = "127.0.0.1:9191"
            in ValueKind::WordOr(&[word_later("same")], &ValueKind::Listen), restart;
        /// File with the token that admin calls must carry.
        token_file: Option<PathBuf> = "~", restart;
        /// TLS of the admin listener.
        tls: Option<ListenerTls>, restart;
        /// Serve the dashboard where the program has one.
        dashboard: bool = "true", later;
        /// Show prompt text to operators.
        show_text: bool = "false", later;
    }
}

/// Memory budget of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBudget {
    /// A share of the memory that the system gives to the process.
    Auto,
    /// No limit.
    Off,
    /// This many bytes.
    Bytes(u64),
}

impl Setting for MemoryBudget {
    const KIND: ValueKind = ValueKind::WordOr(AUTO_OR_OFF, &size(16 << 20, 1 << 50));

    fn read(value: &CheckedValue) -> Option<Self> {
        Some(match (value.size_if_set(), value.word()) {
            (Some(bytes), _) => Self::Bytes(bytes),
            (None, Some("off")) => Self::Off,
            (None, _) => Self::Auto,
        })
    }
}
