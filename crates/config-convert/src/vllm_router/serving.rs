//! Converts that router's listeners, retries, health checks and circuit breaker.

use std::net::{IpAddr, SocketAddr};

use settings::{Value, ValueKind, kinds::int};

use super::{
    Conversion, KeyMapping,
    keys::{COUNT, MILLISECONDS_OR_ZERO, SECONDS, key},
};
use crate::source_config::{SourceField, UnreadFields};

/// Number of attempts: that router's "retries" include the first one.
const SENDS: ValueKind = int(1, 100);

/// Retry keys besides the number of attempts.
const RETRY: &[KeyMapping] = &[
    key(
        "initial_backoff_ms",
        "retry.base_delay",
        MILLISECONDS_OR_ZERO,
    )
    .unit("ms"),
    key("max_backoff_ms", "retry.max_delay", MILLISECONDS_OR_ZERO).unit("ms"),
];

const HEALTH_CHECK: &[KeyMapping] = &[
    key("check_interval_secs", "health_checks.interval", SECONDS).unit("s"),
    key("timeout_secs", "health_checks.timeout", SECONDS).unit("s"),
    key(
        "failure_threshold",
        "health_checks.unhealthy_threshold",
        COUNT,
    ),
    key(
        "success_threshold",
        "health_checks.healthy_threshold",
        COUNT,
    ),
    key("endpoint", "health_checks.endpoint", ValueKind::UrlPath),
];

const CIRCUIT_BREAKER: &[KeyMapping] = &[
    key(
        "failure_threshold",
        "circuit_breaker.consecutive_failures",
        COUNT,
    ),
    key("timeout_duration_secs", "circuit_breaker.ejection", SECONDS).unit("s"),
];

impl Conversion {
    pub(super) fn serving(&mut self, top: &mut UnreadFields<'_>) {
        self.listen(top);
        self.retries(top);
        if let Some(mut checks) = self.section(top, "health_check") {
            self.keys(HEALTH_CHECK, &mut checks);
            self.given.leave(checks);
        }
        if let Some(mut breaker) = self.section(top, "circuit_breaker") {
            self.keys(CIRCUIT_BREAKER, &mut breaker);
            self.given.leave(breaker);
        }
        if self.is_true(top, "disable_circuit_breaker") {
            let place = top.place("disable_circuit_breaker", None);
            self.set("circuit_breaker.enabled", "false".to_owned(), &place);
        }
    }

    /// Takes a switch; it is off if it is left out.
    fn is_true(&mut self, fields: &mut UnreadFields<'_>, key: &str) -> bool {
        let field = fields.take(key);
        let value = field.and_then(|field| self.given.value(&field, &ValueKind::Bool));
        value == Some(Value::Bool(true))
    }

    /// Converts two keys to one of ours.
    fn listen(&mut self, top: &mut UnreadFields<'_>) {
        let (host, port) = (top.take("host"), top.take("port"));
        let (host_place, port_place) = (
            top.place("host", host.as_ref()),
            top.place("port", port.as_ref()),
        );
        let port = self.port(port.as_ref());
        let Some(address) = host.and_then(|host| self.host(host)) else {
            if let Some(port) = port {
                self.set("server.port", port.to_string(), &port_place);
            }
            return;
        };
        // Our default port if that file leaves it out.
        let listen = SocketAddr::new(address, port.unwrap_or(8080));
        self.set("server.listen", format!("\"{listen}\""), &host_place);
        if !address.is_loopback() {
            let note =
                "others can reach this: protect it with a key (--api-key), or set insecure_open";
            self.ours.note("server.listen", note.to_owned());
        }
    }

    /// Reads the port of a listener.
    pub(super) fn port(&mut self, field: Option<&SourceField<'_>>) -> Option<u16> {
        match self.given.value(field?, &int(0, 65_535)) {
            Some(Value::Int(port)) => u16::try_from(port).ok(),
            _ => None,
        }
    }

    /// Reads the host of a listener. A host name would have to be resolved, and stays without a
    /// counterpart.
    pub(super) fn host(&mut self, field: SourceField<'_>) -> Option<IpAddr> {
        let Some(Value::Text(text)) = self.given.value(&field, &ValueKind::Text) else {
            return None;
        };
        let address = if text == "localhost" {
            Some(IpAddr::from([127, 0, 0, 1]))
        } else {
            text.parse().ok()
        };
        if address.is_none() {
            self.given.unused(field);
        }
        address
    }

    fn retries(&mut self, top: &mut UnreadFields<'_>) {
        let off = self.is_true(top, "disable_retries");
        let retry = self.section(top, "retry");
        let mut retry = retry.unwrap_or_else(|| top.absent("retry"));
        let field = retry.take("max_retries");
        let place = retry.place("max_retries", field.as_ref());
        let sends = match (field, off) {
            (Some(field), true) => {
                self.given
                    .unused_because(field, "disable_retries takes precedence");
                Some(1)
            }
            (None, true) => Some(1),
            (Some(field), false) => match self.given.value(&field, &SENDS) {
                Some(Value::Int(sends)) => Some(sends),
                _ => None,
            },
            (None, false) => None,
        };
        if let Some(sends) = sends {
            self.set("retry.max_attempts", sends.to_string(), &place);
            // `request.max_retries` bounds the attempts too.
            self.set("request.max_retries", (sends - 1).to_string(), &place);
        }
        self.keys(RETRY, &mut retry);
        self.given.leave(retry);
    }
}
