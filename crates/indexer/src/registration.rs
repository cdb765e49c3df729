//! Checked `/register` bodies, and the key by which `/unregister` names a registration.

use std::{fmt, sync::Arc};

use api::ServiceReport;
use event_sources::{Endpoint, EventDefaults, StandardSinkSpec};
use kv_blocks::{BlockSize, HashScheme, Target};
use kv_events::standard::StreamKey;
use net::{Address, Destinations, WorkerUrl};

use crate::{
    error::{CallError, CallErrorKind as Fault},
    field_map::{FieldMap, FieldSpec},
    fields::FieldKind,
};

/// Tenant of registrations that name none.
pub(crate) const DEFAULT_TENANT: &str = "default";

/// Fields of `/register`.
pub(crate) const REGISTER: &[FieldSpec] = &[
    ("endpoint", FieldKind::Text),
    ("replay_endpoint", FieldKind::Text),
    ("type", FieldKind::Text),
    ("modelname", FieldKind::Text),
    ("lora_name", FieldKind::Text),
    ("tenant_id", FieldKind::Text),
    ("instance_id", FieldKind::Text),
    ("block_size", FieldKind::Number),
    ("dp_rank", FieldKind::Number),
    ("additionalsalt", FieldKind::Text),
];

/// Fields of `/unregister`: other fields are accepted and narrow nothing (contract MC2).
pub(crate) const UNREGISTER: &[FieldSpec] = &[
    ("tenant_id", FieldKind::Text),
    ("instance_id", FieldKind::Text),
    ("dp_rank", FieldKind::Number),
];

/// Identity of a registered publisher. Ordered by tenant first, so that a tenant's publishers are
/// adjacent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegistrationKey {
    pub(crate) tenant: Arc<str>,
    pub(crate) instance: Arc<str>,
    pub(crate) rank: u32,
}

impl RegistrationKey {
    pub(crate) fn of(form: &FieldMap) -> Result<Self, CallError> {
        let rank = form.required_number("dp_rank")?;
        let rank = u32::try_from(rank).map_err(|_| {
            CallError::field(
                "dp_rank",
                format!("dp_rank {rank} is out of range: expected 0 to {}", u32::MAX),
            )
        })?;
        Ok(Self {
            tenant: form.text("tenant_id").unwrap_or(DEFAULT_TENANT).into(),
            instance: form.required_text("instance_id")?.into(),
            rank,
        })
    }

    /// Returns the key as replies write it.
    pub(crate) fn text(&self) -> String {
        format!("{}|{}|{}", self.instance, self.tenant, self.rank)
    }
}

/// Kind of publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublisherKind {
    Vllm,
    Sglang,
    /// Over a socket, or with a list to poll.
    TensorRtLlm,
    /// Master of a store that several engines share.
    Mooncake,
}

impl PublisherKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::TensorRtLlm => "TensorRT-LLM",
            Self::Mooncake => "Mooncake",
        }
    }

    /// Returns whether the publisher is a store: its events carry no tokens, only hashes of blocks
    /// that engines named.
    pub(crate) fn is_store(self) -> bool {
        self == Self::Mooncake
    }

    fn of(form: &FieldMap) -> Result<Self, CallError> {
        let text = form.required_text("type")?;
        let plain: String = text
            .chars()
            .filter(|char| !matches!(char, '-' | '_' | ' '))
            .map(|char| char.to_ascii_lowercase())
            .collect();
        Ok(match &*plain {
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "tensorrtllm" | "trtllm" | "tensorrt" => Self::TensorRtLlm,
            "mooncake" => Self::Mooncake,
            _ => {
                let message = format!(
                    "type {text:?} is not known: expected vLLM, SGLang, TensorRT-LLM or Mooncake"
                );
                return Err(CallError::field("type", message));
            }
        })
    }
}

/// Address of a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublisherAddress {
    /// A ZMQ socket.
    Socket(Endpoint),
    /// An engine that answers with a list of events.
    Polled(WorkerUrl),
}

impl PublisherAddress {
    fn of(
        text: &str,
        publisher: PublisherKind,
        destinations: &Destinations,
    ) -> Result<Self, CallError> {
        if publisher != PublisherKind::TensorRtLlm || !text.starts_with("http") {
            return destination("endpoint", text, destinations).map(Self::Socket);
        }
        let url: WorkerUrl = text
            .parse()
            .map_err(|error| CallError::field("endpoint", format!("endpoint: {error}")))?;
        permitted("endpoint", &url.address(), destinations)?;
        Ok(Self::Polled(url.only_at(destinations.clone())))
    }
}

impl fmt::Display for PublisherAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(endpoint) => write!(f, "{endpoint}"),
            Self::Polled(url) => write!(f, "{url}"),
        }
    }
}

/// A registered publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) key: RegistrationKey,
    pub(crate) publisher: PublisherKind,
    pub(crate) endpoint: PublisherAddress,
    pub(crate) replay_endpoint: Option<Endpoint>,
    pub(crate) model: Arc<str>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) block_size: BlockSize,
}

impl Registration {
    /// Builds a registration from its fields; its endpoint must be among the permitted
    /// `destinations`.
    pub(crate) fn of(form: &FieldMap, destinations: &Destinations) -> Result<Self, CallError> {
        let address = form.required_text("endpoint")?;
        let publisher = PublisherKind::of(form)?;
        let endpoint = PublisherAddress::of(address, publisher, destinations)?;
        if matches!(endpoint, PublisherAddress::Polled(_)) && form.text("replay_endpoint").is_some()
        {
            let message = "replay_endpoint: a polled engine has no replay: leave it out";
            return Err(CallError::field("replay_endpoint", message));
        }
        Ok(Self {
            endpoint,
            replay_endpoint: form
                .text("replay_endpoint")
                .map(|text| destination("replay_endpoint", text, destinations))
                .transpose()?,
            publisher,
            model: form.required_text("modelname")?.into(),
            lora: form.text("lora_name").map(Arc::from),
            salt: form.text("additionalsalt").map(Arc::from),
            block_size: block_size(form)?,
            key: RegistrationKey::of(form)?,
        })
    }

    /// Returns the first field in which another registration of the same publisher differs.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let fields = [
            ("endpoint", self.endpoint != other.endpoint),
            (
                "replay_endpoint",
                self.replay_endpoint != other.replay_endpoint,
            ),
            ("type", self.publisher != other.publisher),
            ("modelname", self.model != other.model),
            ("lora_name", self.lora != other.lora),
            ("block_size", self.block_size != other.block_size),
            ("additionalsalt", self.salt != other.salt),
        ];
        fields
            .into_iter()
            .find(|(_, differs)| *differs)
            .map(|(field, _)| field)
    }

    /// Returns defaults for values that its events leave out. Source: contract MC11.
    pub(crate) fn defaults(&self) -> EventDefaults {
        EventDefaults {
            lora: self.lora.clone(),
            salt: self.salt.clone(),
            block_size: Some(self.block_size),
        }
    }

    /// Returns the scope of its envelopes. Source: contract MC8, MC11.
    pub(crate) fn scope(&self, target: Target, scheme: HashScheme) -> StandardSinkSpec {
        StandardSinkSpec {
            id: target.worker,
            registration: StreamKey {
                model: Some(Arc::clone(&self.model)),
                block_size: Some(self.block_size.tokens()),
                salt: self.salt.clone(),
                lora: self.lora.clone(),
                tenant: Some(Arc::clone(&self.key.tenant)),
                dp_rank: Some(self.key.rank),
                ..StreamKey::default()
            },
            scheme,
        }
    }

    /// Returns the registration as `/services` lists it, with defaults filled in and without its
    /// stream.
    pub(crate) fn report(&self) -> ServiceReport {
        ServiceReport {
            endpoint: Some(self.endpoint.to_string()),
            replay_endpoint: self.replay_endpoint.as_ref().map(Endpoint::to_string),
            publisher_type: self.publisher.as_str().into(),
            modelname: Some(Arc::clone(&self.model)),
            lora_name: self.lora.clone().unwrap_or_default(),
            tenant_id: Arc::clone(&self.key.tenant),
            instance_id: Arc::clone(&self.key.instance),
            block_size: self.block_size.tokens(),
            dp_rank: self.key.rank,
            additionalsalt: self.salt.clone().unwrap_or_default(),
            source: "registered".into(),
            state: None,
            stream: None,
        }
    }
}

/// Returns the number of tokens per block.
pub(crate) fn block_size(form: &FieldMap) -> Result<BlockSize, CallError> {
    BlockSize::new(form.required_number("block_size")?)
        .map_err(|error| CallError::field("block_size", error.to_string()))
}

fn destination(
    field: &'static str,
    text: &str,
    destinations: &Destinations,
) -> Result<Endpoint, CallError> {
    let bad = |error: &dyn std::fmt::Display| CallError::field(field, format!("{field}: {error}"));
    let endpoint: Endpoint = text.parse().map_err(|error| bad(&error))?;
    let address = endpoint.to_address().map_err(|error| bad(&error))?;
    permitted(field, &address, destinations)?;
    Ok(endpoint)
}

fn permitted(
    field: &'static str,
    address: &Address,
    destinations: &Destinations,
) -> Result<(), CallError> {
    destinations
        .check_host(address)
        .map_err(|error| CallError::new(Fault::Forbidden, format!("{field}: {error}")).at(field))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use serde_json::{Value, json};

    use super::*;
    use crate::field_map::Encoding;

    fn sample() -> Value {
        json!({"endpoint": "tcp://1.1.1.1:5557", "type": "vLLM", "modelname": "m", "instance_id": "i", "block_size": 16, "dp_rank": 0})
    }

    fn with(field: &str, value: Value) -> Result<Registration, CallError> {
        let mut body = sample();
        body[field] = value;
        read(&body)
    }

    fn read(body: &Value) -> Result<Registration, CallError> {
        let form = FieldMap::read(body.to_string().as_bytes(), Encoding::Json, REGISTER)?;
        Registration::of(&form, &Destinations::Engines)
    }

    #[test]
    #[contract("MC1")]
    fn optional_fields_have_their_defaults() {
        let shown = read(&sample()).unwrap().report();
        assert_eq!((&*shown.tenant_id, &*shown.lora_name), ("default", ""));
        assert_eq!((&*shown.additionalsalt, shown.replay_endpoint), ("", None));
        let empty = with("tenant_id", json!("")).unwrap();
        assert_eq!(empty, with("tenant_id", Value::Null).unwrap());
    }

    #[test]
    #[contract("MC1")]
    fn a_type_is_known_in_any_case() {
        for (text, known) in [
            ("vllm", PublisherKind::Vllm),
            ("VLLM", PublisherKind::Vllm),
            ("sglang", PublisherKind::Sglang),
            ("TensorRT-LLM", PublisherKind::TensorRtLlm),
            ("trtllm", PublisherKind::TensorRtLlm),
            ("MOONCAKE", PublisherKind::Mooncake),
        ] {
            assert_eq!(with("type", json!(text)).unwrap().publisher, known);
        }
    }

    #[test]
    #[contract("MC1")]
    fn a_missing_or_bad_field_is_named() {
        for field in [
            "endpoint",
            "type",
            "modelname",
            "instance_id",
            "block_size",
            "dp_rank",
        ] {
            assert_eq!(with(field, Value::Null).unwrap_err().field, Some(field));
        }
        for (field, value) in [
            ("block_size", json!(0)),
            ("block_size", json!(-1)),
            ("block_size", json!(65_537)),
            ("block_size", json!(1_u64 << 32)),
            ("block_size", json!("16")),
            ("dp_rank", json!(-1)),
            ("dp_rank", json!(1_u64 << 32)),
            ("endpoint", json!("http://1.1.1.1:1")),
            ("endpoint", json!("tcp://*:5557")),
            ("endpoint", json!("tcp://1.1.1.1:0")),
            ("endpoint", json!("")),
            ("replay_endpoint", json!("inproc://x")),
            ("type", json!("Triton")),
            ("instance_id", json!("")),
            ("instance_id", json!(7)),
            ("modelname", json!(["m"])),
        ] {
            let error = with(field, value.clone()).unwrap_err();
            assert_eq!(
                (error.kind, error.field),
                (Fault::Body, Some(field)),
                "{field} {value}: {error:?}"
            );
        }
    }

    #[test]
    #[contract("S37", "S39")]
    fn the_address_of_a_metadata_service_is_refused() {
        for field in ["endpoint", "replay_endpoint"] {
            let error = with(field, json!("tcp://169.254.169.254:80")).unwrap_err();
            assert_eq!((error.kind, error.field), (Fault::Forbidden, Some(field)));
        }
        assert!(with("endpoint", json!("ipc:///run/kv.sock")).is_ok());
    }

    #[test]
    fn the_first_difference_is_named() {
        let one = read(&sample()).unwrap();
        assert_eq!(one.difference(&one), None);
        for (field, value) in [
            ("modelname", json!("other")),
            ("lora_name", json!("l")),
            ("additionalsalt", json!("s")),
        ] {
            assert_eq!(one.difference(&with(field, value).unwrap()), Some(field));
        }
    }
}
