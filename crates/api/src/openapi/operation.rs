//! One operation of the document.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::ErrorReply;

/// Generates a schema, and adds those that it refers to to the document.
type SchemaSource = fn(&mut SchemaGenerator) -> Schema;

/// The listener that answers an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Operators.
    Admin,
    /// Clients.
    Data,
    /// Both of them.
    Both,
}

/// The calls of the admin listener that a token allows: those of its role and of the roles before
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Calls that change nothing.
    Read,
    /// Calls that change the running process, but neither configuration nor registrations.
    Operate,
    /// All calls.
    Admin,
}

impl Role {
    /// Returns its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl Listener {
    /// Returns the servers with the addresses that they have unless configured.
    pub(super) fn servers(self) -> Value {
        let (admin, data) = (
            json!({"url": "http://127.0.0.1:9191", "description": "The admin listener"}),
            json!({"url": "http://127.0.0.1:8080", "description": "The data listener"}),
        );
        match self {
            Self::Admin => json!([admin]),
            Self::Data => json!([data]),
            Self::Both => json!([admin, data]),
        }
    }

    fn security(self) -> Value {
        match self {
            Self::Admin => json!([{}, {"adminToken": []}]),
            Self::Data => json!([{}, {"clientKey": []}]),
            Self::Both => json!([{}, {"adminToken": []}, {"clientKey": []}]),
        }
    }
}

/// One operation: a method of a path.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Method, in capitals.
    pub method: &'static str,
    /// Path with parameters in braces.
    pub path: &'static str,
    /// Its id in generated clients.
    pub id: &'static str,
    /// The listener that answers it.
    pub listener: Listener,
    /// The role that the admin listener asks for.
    pub role: Option<Role>,
    summary: &'static str,
    parameters: Vec<Value>,
    request: Option<SchemaSource>,
    replies: Vec<Reply>,
}

/// Reply of one status.
#[derive(Clone, Copy, Debug)]
struct Reply {
    status: u16,
    media_type: &'static str,
    schema: Option<SchemaSource>,
}

impl Operation {
    /// Returns an operation of the admin listener.
    pub(super) fn of_admin(
        role: Role,
        call: (&'static str, &'static str),
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self::new(Listener::Admin, Some(role), call, (id, summary))
    }

    /// Returns an operation of the data listener.
    pub(super) fn of_data(
        call: (&'static str, &'static str),
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self::new(Listener::Data, None, call, (id, summary))
    }

    /// Adds the admin listener to an operation of the data listener.
    pub(super) fn also_of_admin(self, role: Role) -> Self {
        Self {
            listener: Listener::Both,
            role: Some(role),
            ..self
        }
    }

    fn new(
        listener: Listener,
        role: Option<Role>,
        (method, path): (&'static str, &'static str),
        (id, summary): (&'static str, &'static str),
    ) -> Self {
        Self {
            method,
            path,
            id,
            listener,
            role,
            summary,
            parameters: Vec::new(),
            request: None,
            replies: Vec::new(),
        }
    }

    /// Adds a parameter of the path.
    pub(super) fn path_parameter(mut self, name: &str, description: &str) -> Self {
        self.parameters.push(json!({
            "name": name, "in": "path", "required": true, "description": description, "schema": {"type": "string"},
        }));
        self
    }

    /// Adds an optional parameter of the query.
    pub(super) fn query(mut self, name: &str, kind: &str, description: &str) -> Self {
        self.parameters.push(json!({
            "name": name, "in": "query", "required": false, "description": description, "schema": {"type": kind},
        }));
        self
    }

    /// Sets the body.
    pub(super) fn body<T: JsonSchema>(mut self) -> Self {
        self.request = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    /// Adds a JSON reply. A second one of the same status is an alternative.
    pub(super) fn reply<T: JsonSchema>(self, status: u16) -> Self {
        self.reply_as::<T>(status, "application/json")
    }

    /// Adds a reply of another media type whose parts have the schema of `T`.
    pub(super) fn reply_as<T: JsonSchema>(mut self, status: u16, media_type: &'static str) -> Self {
        self.replies.push(Reply {
            status,
            media_type,
            schema: Some(SchemaGenerator::subschema_for::<T>),
        });
        self
    }

    /// Adds a reply without a schema.
    pub(super) fn text(mut self, media_type: &'static str) -> Self {
        self.replies.push(Reply {
            status: 200,
            media_type,
            schema: None,
        });
        self
    }

    /// Adds errors.
    pub(super) fn errors(self, statuses: &[u16]) -> Self {
        self.errors_as::<ErrorReply>(statuses)
    }

    /// Adds errors with another body. Where a key or token can be wrong, it may also allow too little,
    /// and too many wrong ones are an error as well.
    pub(super) fn errors_as<T: JsonSchema>(self, statuses: &[u16]) -> Self {
        let add = |operation: Self, status: &u16| operation.reply::<T>(*status);
        let of_keys: &[u16] = if statuses.contains(&401) {
            &[403, 429]
        } else {
            &[]
        };
        let more = of_keys.iter().filter(|status| !statuses.contains(status));
        statuses.iter().chain(more).fold(self, add)
    }

    /// Returns the operation's object.
    pub(super) fn describe(&self, schemas: &mut SchemaGenerator) -> Value {
        let mut object = json!({
            "operationId": self.id,
            "summary": self.summary,
            "security": self.listener.security(),
        });
        if let Some(role) = self.role {
            object["x-role"] = role.as_str().into();
        }
        if !self.parameters.is_empty() {
            object["parameters"] = self.parameters.as_slice().into();
        }
        if let Some(schema) = self.request.map(|schema| schema(schemas)) {
            object["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
        }
        let mut replies: Map<String, Value> = Map::new();
        for reply in &self.replies {
            let schema = reply.schema.map(|schema| schema(schemas).to_value());
            let entry = replies
                .entry(reply.status.to_string())
                .or_insert_with(|| json!({"description": meaning(reply.status), "content": {}}));
            let content = &mut entry["content"][reply.media_type];
            *content = match (content["schema"].take(), schema) {
                (_, None) => json!({}),
                (Value::Null, Some(schema)) => json!({"schema": schema}),
                (other, Some(schema)) => json!({"schema": {"anyOf": [other, schema]}}),
            };
        }
        object["responses"] = replies.into();
        object
    }
}

fn meaning(status: u16) -> &'static str {
    match status {
        200 => "Done",
        201 => "Added",
        400 => "The request is not valid",
        401 => "The token or key is missing or wrong",
        403 => "Not allowed",
        404 => "Not found",
        409 => "In conflict with the present state",
        413 => "The body is too large",
        429 => "Too many requests",
        500 => "Failed in the router",
        503 => "Not possible at present",
        _ => "See the error",
    }
}
