//! Sections `server` and `admin`: the listeners.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use api::openapi::Role;
use settings::{
    AddressRange, CheckedValue, ListenSetting, Secret, Setting, ValueKind, WebOrigin,
    kinds::{ANY_PORT, AUTO, AUTO_OR_OFF, SECONDS_OR_ZERO, int, size},
    word_later,
};

use super::ListenerTls;

settings::section! {
    /// Section `server`.
    #[derive(Clone, Debug)]
    pub struct ServerSection {
        /// Address for clients. Port 0: chosen by the system. Any address but loopback requires
        /// `insecure_open`.
        listen: ListenSetting = "127.0.0.1:8080", restart;
        /// Port of the data listener. `auto`: the port in `listen`.
        port: Option<u16> = "auto" in ANY_PORT, restart;
        /// Allow an address other than loopback without an API key (`--insecure-open`).
        insecure_open: bool = "false", restart;
        /// Origins of web pages that may call the data listener beside its own
        /// (`https://app.example`): their preflights are answered, their replies have CORS headers,
        /// and where no API key is needed their requests and their `Host` are accepted. `*`: all.
        allowed_origins: Vec<WebOrigin> = "[]", live;
        /// Addresses of proxies whose `X-Forwarded-*`, `Forwarded` and `X-Real-IP` reach engines
        /// and hooks. Those of other clients are removed. Wrong keys count for the client in their
        /// `X-Forwarded-For`.
        trusted_proxies: Vec<AddressRange> = "[]", live;
        /// Further addresses of the data listener.
        also_listen: Vec<ListenSetting> = "[]", restart;
        /// Address that serves only `/livez` and `/readyz`, on a thread of its own, without TLS and
        /// without a key.
        probe_listen: Option<ListenSetting> = "~", restart;
        /// TLS of the data listener; unix sockets are not encrypted.
        tls: Option<ListenerTls>, restart;
        /// Largest request head. A larger one is refused with 431.
        max_head_bytes: usize = "32KiB" in size(8 << 10, 1 << 20), live;
        /// Largest request body. A larger one is refused with 413.
        max_body_bytes: usize = "32MiB" in size(1, 4 << 30), live;
        /// Maximum bytes of the bodies of all running requests and of their whole replies; a request
        /// beyond it is refused (503). At least `max_body_bytes`. Parts are reserved for small bodies,
        /// other addresses and other tenants: docs/limits.md.
        max_held_bytes: u64 = "1GiB" in size(1, 1 << 50), live;
        /// Maximum number of completions of one prompt (`n`); beyond it: 400. 0: off.
        max_choices: u64 = "128", live;
        /// Maximum number of prompts, or texts to compute, in one request; beyond it: 400. 0: off.
        max_prompts: u64 = "2048", live;
        /// Maximum number of stop sequences (`stop`, `stop_sequences`); beyond it: 400. 0: off.
        max_stop: u64 = "64", live;
        /// Maximum number of client connections. `auto`: derived from the limit on file
        /// descriptors. At the limit a new connection replaces the one that has been idle longest.
        max_connections: Option<NonZeroU32> = "auto"
            in ValueKind::WordOr(AUTO, &int(1, 10_000_000)), restart;
        /// Accept HTTP/2 beside HTTP/1.1 on the data listener: negotiated over TLS, with prior
        /// knowledge without TLS.
        http2: bool = "true", restart;
        /// Time after which an idle client connection is closed.
        keep_alive: Duration = "75s", live;
        /// Time limit for a request head: for the first one of a connection from the start of the
        /// connection, for later ones from their first byte.
        head_timeout: Duration = "10s", live;
        /// Time limit for a request body. A body slower than 1 KiB/s is refused earlier.
        body_timeout: Duration = "60s", live;
        /// Reply also to a client that closes its sending side after the request. Few clients do
        /// this, and it cannot be distinguished from a disconnect: such a request is aborted only
        /// when the reply is written.
        half_close: bool = "false", live;
        /// Time for which running streams may continue after a stop signal.
        drain_timeout: Duration = "300s" in SECONDS_OR_ZERO, restart;
        /// Time for which new connections are still served after SIGTERM or `POST /admin/drain`,
        /// while readiness fails; load balancers need this time to notice. SIGINT skips it.
        drain_grace: Duration = "5s" in SECONDS_OR_ZERO, restart;
        /// Memory budget of the process (RSS). At 80 % of it caches shrink to half; at 90 % caches
        /// take nothing new and bodies above 1 MiB are refused (503); at 95 % new requests are
        /// refused (503); at 98 % new connections are not accepted. `auto`: 90 % of the control
        /// group's limit or of the machine's memory, whichever is less. `off`: no budget.
        memory_budget: MemoryBudget = "auto", live;
        /// Number of threads that serve requests. `auto`: one per core.
        runtime_threads: Option<NonZeroU32> = "auto"
            in ValueKind::WordOr(AUTO, &int(1, 1_024)), restart;
    }
}

settings::section! {
    /// Section `admin`.
    #[derive(Clone, Debug)]
    pub struct AdminSection {
        /// Address for operators. Any address but loopback requires `token_file` or `tokens`.
        listen: ListenSetting = "127.0.0.1:9191"
            in ValueKind::WordOr(&[word_later("same")], &ValueKind::Listen), restart;
        /// File with the token that admin requests must carry; it has the role `admin`.
        token_file: Option<PathBuf> = "~", restart;
        /// Further tokens, each with the name and the role of its owner.
        tokens: Vec<AdminTokenEntry> = "[]", restart;
        /// File to which a JSON line is appended for each call that may change something (mode 0600
        /// if it is new). Unset: these calls are in the log only.
        audit_log: Option<PathBuf> = "~", restart;
        /// TLS of the admin listener.
        tls: Option<ListenerTls>, restart;
        /// Serve the dashboard if the program contains it.
        dashboard: bool = "true", later;
        /// Show prompt text to operators.
        show_text: bool = "false", later;
    }
}

settings::section! {
    /// A token of an operator.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct AdminTokenEntry {
        /// Name of its owner in the audit log. Required, unique.
        name: String = "~", restart;
        /// The token. Required, unless `token_file` is set.
        token: Option<Secret> = "~", restart;
        /// File with the token, in place of `token`.
        token_file: Option<PathBuf> = "~", restart;
        /// The calls that it allows. `read`: those that change nothing. `operate`: also those that
        /// drain, clear caches and send requests to engines. `admin`: all.
        role: AdminRole = "read", restart;
    }
}

settings::words! {
    /// The calls that an admin token allows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AdminRole {
        /// Those that change nothing.
        Read = "read",
        /// Also those that change the running process, but neither configuration nor workers.
        Operate = "operate",
        /// All.
        Admin = "admin",
    }
}

impl From<AdminRole> for Role {
    fn from(role: AdminRole) -> Self {
        match role {
            AdminRole::Read => Self::Read,
            AdminRole::Operate => Self::Operate,
            AdminRole::Admin => Self::Admin,
        }
    }
}

impl AdminSection {
    /// Returns whether callers must send a token.
    pub fn requires_token(&self) -> bool {
        self.token_file.is_some() || !self.tokens.is_empty()
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
