//! Converts that router's listeners, retries and health checks.

use std::net::{IpAddr, SocketAddr};

use settings::{MAX_DURATION, Value, ValueKind};

use super::{Conversion, KeyMapping, key};
use crate::source_config::UnreadFields;

const SECONDS: ValueKind = ValueKind::Int {
    min: 1,
    max: MAX_DURATION.as_secs(),
};
const MILLISECONDS: ValueKind = ValueKind::Int {
    min: 0,
    max: MAX_DURATION.as_secs() * 1_000,
};
const COUNT: ValueKind = ValueKind::Int {
    min: 1,
    max: 1_000_000,
};
const ANY_PORT: ValueKind = ValueKind::Int {
    min: 0,
    max: 65_535,
};
/// Number of attempts: that router's "retries" include the first one.
const SENDS: ValueKind = ValueKind::Int { min: 1, max: 100 };

/// Retry keys besides the number of attempts.
const RETRY: &[KeyMapping] = &[
    KeyMapping {
        unit: "ms",
        ..key("initial_backoff_ms", "retry.base_delay", MILLISECONDS)
    },
    KeyMapping {
        unit: "ms",
        ..key("max_backoff_ms", "retry.max_delay", MILLISECONDS)
    },
];

const HEALTH_CHECK: &[KeyMapping] = &[
    KeyMapping {
        unit: "s",
        ..key("check_interval_secs", "health_checks.interval", SECONDS)
    },
    KeyMapping {
        unit: "s",
        ..key("timeout_secs", "health_checks.timeout", SECONDS)
    },
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

impl Conversion {
    pub(super) fn serving(&mut self, top: &mut UnreadFields<'_>) {
        self.listen(top);
        let retry = top
            .take("retry")
            .and_then(|retry| self.given.fields(&retry));
        if let Some(mut retry) = retry {
            self.sends(&mut retry);
            self.keys(RETRY, &mut retry);
            self.given.leave(retry);
        }
        let checks = top
            .take("health_check")
            .and_then(|checks| self.given.fields(&checks));
        if let Some(mut checks) = checks {
            self.keys(HEALTH_CHECK, &mut checks);
            self.given.leave(checks);
        }
    }

    /// Converts two keys to one of ours. A host name would have to be resolved, and stays without a
    /// counterpart.
    fn listen(&mut self, top: &mut UnreadFields<'_>) {
        let (host, port) = (top.take("host"), top.take("port"));
        let place = top.place("port", port.as_ref());
        let number = port.and_then(|port| self.given.value(&port, &ANY_PORT));
        let port = match number {
            Some(Value::Int(port)) => u16::try_from(port).ok(),
            _ => None,
        };
        let Some(host) = host else {
            if let Some(port) = port {
                self.set("server.port", port.to_string(), &place);
            }
            return;
        };
        let text = self.given.value(&host, &ValueKind::Text);
        let Some(Value::Text(text)) = text else {
            return;
        };
        let address = if text == "localhost" {
            Ok(IpAddr::from([127, 0, 0, 1]))
        } else {
            text.parse::<IpAddr>()
        };
        let Ok(address) = address else {
            self.given.unused(host);
            if let Some(port) = port {
                self.set("server.port", port.to_string(), &place);
            }
            return;
        };
        let place = (host.path.clone(), host.value.origin.clone());
        // Our default port if that file leaves it out.
        let listen = SocketAddr::new(address, port.unwrap_or(8080));
        self.set("server.listen", format!("\"{listen}\""), &place);
        if !address.is_loopback() {
            let note =
                "others can reach this: protect it with a key (--api-key), or set insecure_open";
            self.ours.note("server.listen", note.to_owned());
        }
    }

    fn sends(&mut self, retry: &mut UnreadFields<'_>) {
        let Some(field) = retry.take("max_retries") else {
            return;
        };
        let place = (field.path.clone(), field.value.origin.clone());
        if let Some(Value::Int(sends)) = self.given.value(&field, &SENDS) {
            self.set("retry.max_attempts", sends.to_string(), &place);
            // `request.max_retries` bounds the attempts too.
            self.set("request.max_retries", (sends - 1).to_string(), &place);
        }
    }
}
