//! Converts where that router sends its traces.

use settings::{Value, ValueError, ValueKind};

use super::{
    Conversion, KeyMapping,
    keys::{SHARE, key},
    urls::any_url,
};
use crate::{converted_config::quoted, source_config::UnreadFields};

/// Our key of the collector.
const OURS: &str = "tracing.otlp_endpoint";
/// The collector of a file that names none.
const USUAL: &str = "localhost:4317";

/// That router exports every trace by default.
const TRACES: &[KeyMapping] = &[key("sampling_ratio", "tracing.sample_ratio", SHARE).or("1.0")];

impl Conversion {
    pub(super) fn traces(&mut self, top: &mut UnreadFields<'_>) {
        let Some(mut config) = self.section(top, "trace_config") else {
            return;
        };
        let enabled = config.take("enable_trace");
        let enabled = enabled.and_then(|field| self.given.value(&field, &ValueKind::Bool));
        if matches!(enabled, Some(Value::Bool(false))) {
            let reason = "no traces are exported there: enable_trace is false";
            self.given.leave_because(config, Some(reason));
            return;
        }
        let field = config.take("otlp_traces_endpoint");
        let place = config.place("otlp_traces_endpoint", field.as_ref());
        let text = match &field {
            None => Some(USUAL.to_owned()),
            Some(field) => match self.given.value(field, &ValueKind::Text) {
                Some(Value::Text(text)) => Some(text),
                _ => None,
            },
        };
        match (text.as_deref().map(collector), &field) {
            (Some(Ok(url)), _) => {
                self.set(OURS, quoted(&url), &place);
                let note =
                    "traces go over HTTP, to port 4318 of most collectors; there it was gRPC";
                self.ours.note(OURS, note.to_owned());
            }
            (Some(Err(message)), Some(field)) => {
                let fault = ValueError::new(message).expected("HOST:PORT of a collector");
                self.given.refuse(field, fault);
            }
            _ => {}
        }
        self.keys(TRACES, &mut config);
        self.given.leave(config);
    }
}

/// Returns the URL of a collector for HTTP, from an address for gRPC: its usual port is another one.
fn collector(endpoint: &str) -> Result<String, String> {
    let (scheme, rest) = match endpoint.split_once("://") {
        None | Some(("http" | "grpc", _)) => ("http", endpoint),
        Some(("https", _)) => ("https", endpoint),
        Some(_) => return Err(format!("`{endpoint}` is not the address of a collector")),
    };
    let rest = rest.split_once("://").map_or(rest, |(_, rest)| rest);
    let rest = rest.trim_end_matches('/');
    let url = match rest.strip_suffix(":4317") {
        Some(host) => format!("{scheme}://{host}:4318"),
        None => format!("{scheme}://{rest}"),
    };
    any_url(&url).map(|_| url)
}

#[cfg(test)]
mod tests {
    use super::collector;

    #[test]
    fn the_address_of_a_collector_becomes_its_url_for_http() {
        for (theirs, ours) in [
            ("c:4317", "http://c:4318"),
            ("http://c:4317/", "http://c:4318"),
            ("grpc://[::1]:4317", "http://[::1]:4318"),
            ("https://c:4317", "https://c:4318"),
            ("https://c:443/v1/traces", "https://c:443/v1/traces"),
            ("c:9000", "http://c:9000"),
        ] {
            assert_eq!(collector(theirs).as_deref(), Ok(ours), "{theirs}");
        }
        for wrong in ["", "ftp://c:4317", "a b:4317", "c:70000", "unix:///run/c"] {
            assert!(collector(wrong).is_err(), "{wrong}");
        }
    }
}
