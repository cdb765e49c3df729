//! The arguments of a router's methods, as values of Rust: the operations run without the
//! interpreter's lock.

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyString},
};
use serde_json::{Map, Value};
use warmroute::embed::{EmbeddedSettings, Secret, TokenQuery};

use crate::{
    json,
    tokens::{shown, token_ids, type_name},
};

/// Returns the settings in the arguments of a constructor.
pub(super) fn settings(
    config: Option<&Bound<'_, PyAny>>,
    workers: Vec<String>,
) -> PyResult<EmbeddedSettings> {
    let text = match config {
        None => None,
        Some(config) if config.is_instance_of::<PyString>() => Some(config_text(config)?),
        Some(config) => match config.cast::<PyDict>() {
            Ok(dict) => Some(json::yaml("config", dict)?),
            Err(_) => {
                let found = type_name(config);
                return Err(PyTypeError::new_err(format!(
                    "config is of type {found}: expected a dict, or a text in YAML or JSON"
                )));
            }
        },
    };
    Ok(EmbeddedSettings { text, workers })
}

/// Returns a configuration's text, unless it looks like the path of one.
fn config_text(config: &Bound<'_, PyAny>) -> PyResult<String> {
    let text: String = config.extract()?;
    let line = text.trim();
    let is_path = !line.is_empty() && !line.contains([':', '{', '\n', '#']);
    if is_path {
        return Err(PyValueError::new_err(format!(
            "config is {}: expected the text of a configuration in YAML or JSON, not the path of a file",
            shown(config)
        )));
    }
    Ok(text)
}

/// Returns the members of the argument `router_config_override`.
fn config_override(dict: Option<&Bound<'_, PyDict>>) -> PyResult<Map<String, Value>> {
    json::members("router_config_override", dict)
}

/// A prompt of token ids, and the options of its decision.
#[derive(Debug)]
pub(super) struct TokenArguments {
    token_ids: Vec<u32>,
    model: Option<String>,
    router_config_override: Map<String, Value>,
    pub(super) request_id: Option<String>,
}

impl TokenArguments {
    pub(super) fn read(
        tokens: &Bound<'_, PyAny>,
        model: Option<String>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
    ) -> PyResult<Self> {
        Ok(Self {
            token_ids: token_ids("token_ids", tokens)?,
            model,
            router_config_override: config_override(router_config_override)?,
            request_id,
        })
    }

    pub(super) fn tokens(&self) -> usize {
        self.token_ids.len()
    }

    pub(super) fn query(&self) -> TokenQuery<'_> {
        TokenQuery {
            model: self.model.as_deref(),
            token_ids: &self.token_ids,
            router_config_override: Some(&self.router_config_override),
            request_id: self.request_id.as_deref(),
        }
    }
}

/// A body of `/v1/route`.
#[derive(Debug)]
pub(super) struct RouteFields {
    /// Its fields; `model` may be missing.
    pub(super) body: Map<String, Value>,
    pub(super) request_id: Option<String>,
    /// Number of its token ids.
    pub(super) tokens: usize,
}

impl RouteFields {
    pub(super) fn read(
        tokens: Option<&Bound<'_, PyAny>>,
        model: Option<String>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut body = json::members("fields", fields)?;
        let token_ids = tokens.map(|tokens| token_ids("token_ids", tokens));
        let token_ids = token_ids.transpose()?;
        let tokens = token_ids.as_ref().map_or(0, Vec::len);
        let config = config_override(router_config_override)?;
        let given = [
            ("token_ids", token_ids.map(Value::from)),
            ("model", model.map(Value::from)),
            ("router_config_override", Some(config.into())),
            ("request_id", request_id.clone().map(Value::from)),
        ];
        for (name, value) in given {
            body.extend(value.map(|value| (name.to_owned(), value)));
        }
        Ok(Self {
            body,
            request_id,
            tokens,
        })
    }
}

/// The arguments of a generation.
#[derive(Debug)]
pub(super) struct GenerationArguments {
    pub(super) token_ids: Vec<u32>,
    pub(super) stop_conditions: Map<String, Value>,
    pub(super) sampling_options: Map<String, Value>,
    pub(super) router_config_override: Map<String, Value>,
    pub(super) model: Option<String>,
    pub(super) worker: Option<String>,
    pub(super) api_key: Option<Secret>,
}

/// The arguments `stop_conditions`, `sampling_options` and `router_config_override`.
type GenerationOptions<'a, 'py> = (
    Option<&'a Bound<'py, PyDict>>,
    Option<&'a Bound<'py, PyDict>>,
    Option<&'a Bound<'py, PyDict>>,
);

/// The arguments `model`, `worker_id` and `api_key`.
type GenerationNames = (Option<String>, Option<String>, Option<String>);

impl GenerationArguments {
    pub(super) fn read(
        tokens: &Bound<'_, PyAny>,
        (stop_conditions, sampling_options, router_config_override): GenerationOptions<'_, '_>,
        (model, worker, api_key): GenerationNames,
    ) -> PyResult<Self> {
        Ok(Self {
            token_ids: token_ids("token_ids", tokens)?,
            stop_conditions: json::members("stop_conditions", stop_conditions)?,
            sampling_options: json::members("sampling_options", sampling_options)?,
            router_config_override: config_override(router_config_override)?,
            model,
            worker,
            api_key: api_key.map(Secret::new),
        })
    }
}
