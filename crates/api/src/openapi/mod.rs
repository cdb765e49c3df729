//! The OpenAPI 3.1 document, generated from the types of this crate and the list of operations.

mod operation;
mod operations;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

pub use operation::{Listener, Operation, Role};
pub use operations::operations;

/// Where the schemas are in the document.
const SCHEMAS: &str = "/components/schemas";

/// Returns the document; `version` is the program's.
pub fn document(version: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations() {
        let path = paths
            .entry(operation.path)
            .or_insert_with(|| json!({"servers": operation.listener.servers()}));
        path[operation.method.to_lowercase()] = operation.describe(&mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "warmroute operator API",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "The admin listener, and of the data listener the calls that are warmroute's own. \
                The OpenAI and Anthropic routes of the data listener pass requests and replies unchanged.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": {
                "adminToken": {
                    "type": "http", "scheme": "bearer",
                    "description": "The token of admin.token_file, or one of admin.tokens whose role is at least \
                        x-role; required off loopback.",
                },
                "clientKey": {
                    "type": "http", "scheme": "bearer",
                    "description": "A key of tenants.api_keys or of --api-key, where one is configured.",
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_operation_has_an_id_of_its_own_and_replies() {
        let operations = operations();
        let ids: HashSet<_> = operations.iter().map(|operation| operation.id).collect();
        assert_eq!(ids.len(), operations.len());
        let document = document("0.1.0");
        for operation in &operations {
            let described = &document["paths"][operation.path][operation.method.to_lowercase()];
            assert!(
                described["responses"]
                    .as_object()
                    .is_some_and(|it| !it.is_empty()),
                "{} {}",
                operation.method,
                operation.path
            );
        }
    }

    #[test]
    fn the_stored_document_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let mut text =
            serde_json::to_string_pretty(&document(env!("CARGO_PKG_VERSION"))).expect("JSON");
        text.push('\n');
        if std::env::var_os("WARMROUTE_TEST_WRITE").is_some() {
            std::fs::write(path, &text).expect("docs/openapi.json can be written");
        }
        let stored = std::fs::read_to_string(path).expect("docs/openapi.json can be read");
        assert!(
            stored == text,
            "docs/openapi.json is old: WARMROUTE_TEST_WRITE=1 cargo test -p api --lib writes it"
        );
    }

    #[test]
    fn every_parameter_in_a_path_is_described() {
        for (path, item) in document("0.1.0")["paths"].as_object().expect("paths") {
            let in_path: Vec<&str> = path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                .collect();
            for (_, operation) in item
                .as_object()
                .expect("operations")
                .iter()
                .filter(|(key, _)| *key != "servers")
            {
                let described: Vec<&str> = operation["parameters"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(|parameter| parameter["in"] == "path")
                    .filter_map(|parameter| parameter["name"].as_str())
                    .collect();
                assert_eq!(described, in_path, "{path}");
            }
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|field| references(field, found));
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, found)),
                _ => {}
            }
        }
        let document = document("0.1.0");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50, "{}", found.len());
        for reference in found {
            let pointer = reference
                .strip_prefix('#')
                .expect("a reference into the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
