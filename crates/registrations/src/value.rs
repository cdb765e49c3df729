//! The form of a worker in the bucket: JSON with the version of the form.

use std::{sync::Arc, time::Duration};

use nats_client::subject_token;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Registration, SharedWorker};

/// Version of the form. A router ignores values of another one.
const FORM: u32 = 1;
/// Most bytes of a value.
pub(crate) const MOST_BYTES: usize = 64 * 1024;
/// Longest lease. A longer one is a mistake, as it is in the admin API.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);

/// A value of the bucket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerValue {
    pub(crate) name: String,
    pub(crate) worker: SharedWorker,
    /// The number of registrations and renewals so far: a lease begins anew when it changes.
    pub(crate) renewal: u64,
    /// The replica that wrote it.
    pub(crate) writer: String,
    /// The number of the change, as its writer counts.
    pub(crate) change: u64,
}

/// Why a value is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("it has {0} bytes, expected at most {MOST_BYTES}")]
    TooLarge(usize),
    #[error("it has form {0}, expected {FORM}: another version of the router wrote it")]
    UnknownForm(u32),
    #[error("it is no worker of the fleet: {0}")]
    Malformed(String),
    #[error("it names the worker {0:?}, which has another key")]
    OtherName(String),
}

#[derive(Deserialize)]
struct FormOnly {
    form: u32,
}

#[derive(Serialize, Deserialize)]
struct Form1 {
    form: u32,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entry: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[serde(default)]
    drained: bool,
    #[serde(default)]
    renewal: u64,
    writer: String,
    change: u64,
}

impl WorkerValue {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let registration = self.worker.registration.as_ref();
        let lease = self.worker.lease();
        let form = Form1 {
            form: FORM,
            name: self.name.clone(),
            entry: registration.map(|registration| (*registration.entry).clone()),
            lease_ms: lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)),
            drained: self.worker.drained,
            renewal: self.renewal,
            writer: self.writer.clone(),
            change: self.change,
        };
        // Text, numbers and JSON have a form in JSON.
        serde_json::to_vec(&form).unwrap_or_default()
    }

    /// Reads the value of a key.
    pub(crate) fn decode(key: &str, bytes: &[u8]) -> Result<Self, ValueError> {
        if bytes.len() > MOST_BYTES {
            return Err(ValueError::TooLarge(bytes.len()));
        }
        let malformed = |error: serde_json::Error| ValueError::Malformed(error.to_string());
        let FormOnly { form } = serde_json::from_slice(bytes).map_err(malformed)?;
        if form != FORM {
            return Err(ValueError::UnknownForm(form));
        }
        let form: Form1 = serde_json::from_slice(bytes).map_err(malformed)?;
        if subject_token(&form.name) != key {
            return Err(ValueError::OtherName(form.name.chars().take(80).collect()));
        }
        let lease = form.lease_ms.map(Duration::from_millis);
        if let Some(lease) = lease.filter(|lease| *lease > LONGEST_LEASE) {
            return Err(ValueError::Malformed(format!(
                "its lease of {} s is longer than a day",
                lease.as_secs()
            )));
        }
        let registration = form.entry.map(|mut entry| {
            // The entry goes by the name of the key, whatever it says.
            entry.insert("name".to_owned(), form.name.as_str().into());
            Registration {
                entry: Arc::new(entry),
                lease,
            }
        });
        Ok(Self {
            name: form.name,
            worker: SharedWorker {
                registration,
                drained: form.drained,
            },
            renewal: form.renewal,
            writer: form.writer,
            change: form.change,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(name: &str) -> WorkerValue {
        let entry = json!({"name": name, "url": "http://10.0.0.5:8000", "weight": 2.0});
        WorkerValue {
            name: name.to_owned(),
            worker: SharedWorker {
                registration: Some(Registration {
                    entry: Arc::new(entry.as_object().unwrap().clone()),
                    lease: Some(Duration::from_millis(1_500)),
                }),
                drained: true,
            },
            renewal: 3,
            writer: "ab".to_owned(),
            change: 7,
        }
    }

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let all = value("10.0.0.5:8000");
        let key = subject_token("10.0.0.5:8000");
        assert_eq!(WorkerValue::decode(&key, &all.encode()), Ok(all.clone()));
        let drain_only = WorkerValue {
            worker: SharedWorker {
                registration: None,
                drained: true,
            },
            ..all
        };
        assert_eq!(
            WorkerValue::decode(&key, &drain_only.encode()),
            Ok(drain_only)
        );
    }

    #[test]
    fn a_value_of_another_form_name_or_size_is_an_error() {
        let error = |bytes: &[u8]| WorkerValue::decode("w", bytes).unwrap_err().to_string();
        for (bytes, says) in [
            (json!({"form": 2, "new": []}).to_string(), "form 2"),
            (json!({"name": "w"}).to_string(), "form"),
            ("\u{0}\u{1}".to_owned(), "no worker"),
            (String::new(), "no worker"),
            ("[".repeat(10_000), "no worker"),
            (
                json!({"form": 1, "name": "w", "entry": [], "writer": "", "change": 1}).to_string(),
                "no worker",
            ),
            (
                json!({"form": 1, "name": "w", "lease_ms": u64::MAX, "writer": "", "change": 1})
                    .to_string(),
                "longer than a day",
            ),
            (" ".repeat(MOST_BYTES + 1), "bytes"),
        ] {
            assert!(error(bytes.as_bytes()).contains(says), "{bytes}");
        }
        assert!(error(&value("other").encode()).contains("\"other\""));
    }

    #[test]
    fn an_entry_goes_by_the_name_of_its_key() {
        let text =
            json!({"form": 1, "name": "w", "entry": {"name": "x"}, "writer": "", "change": 1});
        let value = WorkerValue::decode("w", text.to_string().as_bytes()).unwrap();
        let entry = value.worker.registration.unwrap().entry;
        assert_eq!(entry["name"], "w");
    }
}
