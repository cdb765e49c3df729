//! The list of operations.

use schemars::JsonSchema;
use serde_json::Value;

use super::{Operation, Role};
use crate::{
    CacheCleared, ConductorError, ConfigHistory, CounterTotals, DoctorReport, DrainReport,
    DrainRequest, GlobalView, HashQuery, HealthReply, InvalidateRequest, KvIndexBackends,
    KvIndexCleared, KvIndexDigest, KvIndexDumpRow, KvIndexStats, ModelReports, OverlapReply,
    ParityReport, PotentialLoads, PrefixRoutingStats, ProbeReply, PublisherRegistered,
    PublisherUnregistered, Receipt, ReceiptList, RegisterRequest, ReloadOutcome, ReloadRequest,
    ReplicaReports, ReservationState, ResponseCacheStats, RollbackRequest, RouteReply,
    RouteRequest, ServiceReports, SessionsReport, StreamReports, TakeoverReply, TakeoverRequest,
    TenantReports, TokenQuery, UnregisterRequest, WorkerRemoval, WorkerReport, WorkerReports,
    WorkerRequest,
};

/// Returns every operation, in the order of the document.
pub fn operations() -> Vec<Operation> {
    let mut all = workers();
    all.extend(decisions());
    all.extend(configuration());
    all.extend(statistics());
    all.extend(kv_index());
    all.extend(response_cache());
    all.extend(conductor());
    all.extend(data_listener());
    all
}

fn get(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::of_admin(Role::Read, ("GET", path), id, summary)
}

fn post(role: Role, path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::of_admin(role, ("POST", path), id, summary)
}

/// An operation that answers with its type, and needs nothing else.
fn report<T: JsonSchema>(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    get(path, id, summary).reply::<T>(200).errors(&[401])
}

fn named(operation: Operation) -> Operation {
    operation.path_parameter("name", "The worker's name")
}

fn workers() -> Vec<Operation> {
    let path = "/admin/workers/{name}";
    let put = Operation::of_admin(
        Role::Admin,
        ("PUT", path),
        "putWorker",
        "Add or replace a worker, or renew its lease",
    );
    let delete = Operation::of_admin(
        Role::Admin,
        ("DELETE", path),
        "removeWorker",
        "Remove a worker; its running requests go on",
    );
    vec![
        report::<WorkerReports>("/admin/workers", "listWorkers", "All workers"),
        post(Role::Admin, "/admin/workers", "addWorker", "Add a worker")
            .body::<WorkerRequest>()
            .reply::<WorkerReport>(201)
            .errors(&[400, 401, 403, 409]),
        named(report::<WorkerReport>(path, "getWorker", "One worker")).errors(&[404]),
        named(put)
            .body::<WorkerRequest>()
            .reply::<WorkerReport>(200)
            .reply::<WorkerReport>(201)
            .errors(&[400, 401, 403]),
        named(delete)
            .reply::<WorkerRemoval>(200)
            .errors(&[400, 401, 404]),
        named(post(
            Role::Operate,
            "/admin/workers/{name}/drain",
            "drainWorker",
            "Send a worker no new requests",
        ))
        .reply::<WorkerRemoval>(200)
        .errors(&[401, 404]),
        named(post(
            Role::Operate,
            "/admin/workers/{name}/resume",
            "resumeWorker",
            "End the drain of a worker",
        ))
        .reply::<WorkerRemoval>(200)
        .errors(&[401, 404]),
    ]
}

fn decisions() -> Vec<Operation> {
    vec![
        get("/admin/decisions", "listDecisions", "The latest receipts")
            .query("limit", "integer", "Most receipts, 0 to 1000; 100 without")
            .query("worker", "string", "Only those sent to this worker")
            .query("tenant", "string", "Only those of this tenant")
            .query("policy", "string", "Only those of this policy")
            .reply::<ReceiptList<'_>>(200)
            .errors(&[400, 401]),
        report::<Receipt<'_>>("/admin/decisions/{id}", "getDecision", "One receipt")
            .path_parameter("id", "Its id, as in x-warmroute-decision")
            .errors(&[404]),
    ]
}

fn configuration() -> Vec<Operation> {
    vec![
        get(
            "/admin/config",
            "getConfig",
            "The configuration in force with every key, secrets as ***",
        )
        .query("format", "string", "json or yaml; json without")
        .reply::<Value>(200)
        .text("application/yaml")
        .errors(&[400, 401]),
        report::<ConfigHistory>(
            "/admin/config/history",
            "getConfigHistory",
            "The latest changes",
        ),
        post(
            Role::Admin,
            "/admin/reload",
            "reloadConfig",
            "Read the configuration again",
        )
        .body::<ReloadRequest>()
        .reply::<ReloadOutcome>(200)
        .reply::<ReloadOutcome>(400)
        .errors(&[400, 401]),
        post(
            Role::Admin,
            "/admin/config/rollback",
            "rollbackConfig",
            "Restore the configuration of an applied change",
        )
        .body::<RollbackRequest>()
        .reply::<ReloadOutcome>(200)
        .reply::<ReloadOutcome>(400)
        .errors(&[400, 401]),
        post(
            Role::Operate,
            "/admin/drain",
            "drain",
            "Stop taking requests",
        )
        .body::<DrainRequest>()
        .reply::<DrainReport>(200)
        .errors(&[400, 401]),
        report::<DrainReport>("/admin/drain/status", "getDrain", "Progress of the drain"),
        post(
            Role::Admin,
            "/admin/takeover",
            "takeover",
            "Hand the listening sockets to another process of this machine",
        )
        .body::<TakeoverRequest>()
        .reply::<TakeoverReply>(200)
        .errors(&[400, 401, 409]),
    ]
}

fn statistics() -> Vec<Operation> {
    vec![
        get("/metrics", "getMetrics", "Metrics for scrapers")
            .text("application/openmetrics-text; version=1.0.0; charset=utf-8")
            .errors(&[401, 404]),
        get("/openapi.json", "getOpenApi", "This document")
            .reply::<Value>(200)
            .errors(&[401]),
        report::<CounterTotals>(
            "/admin/stats",
            "getStats",
            "Counters summed over their labels",
        ),
        get(
            "/admin/doctor",
            "runDoctor",
            "Check the agreement of router and engines",
        )
        .query(
            "probe",
            "boolean",
            "Whether requests may be sent to the engines; needs the role operate",
        )
        .reply::<DoctorReport>(200)
        .errors(&[400, 401, 409]),
        report::<ParityReport>(
            "/admin/parity",
            "getParity",
            "Predicted beside actual cached tokens",
        ),
        report::<PrefixRoutingStats>(
            "/admin/prefix-routing/stats",
            "getPrefixRouting",
            "Prefix routing",
        ),
        report::<SessionsReport>(
            "/admin/sessions",
            "listSessions",
            "Requests that wait for room in a cache, and the blocks that the caches have in use",
        )
        .query(
            "limit",
            "integer",
            "Most rows of each list, 0 to 1000; 100 without",
        )
        .errors(&[400]),
        report::<TenantReports>(
            "/admin/tenants",
            "listTenants",
            "Tenants of clients, and what their requests have come to",
        )
        .query("limit", "integer", "Most tenants, 0 to 1000; 100 without")
        .query("name", "string", "Only the tenant with this name"),
        report::<StreamReports>("/admin/streams", "listStreams", "KV event streams"),
        report::<ReplicaReports>(
            "/admin/replicas",
            "listReplicas",
            "Routers that share state",
        ),
        get(
            "/admin/replicas/feed",
            "readReplicaFeed",
            "Messages of this router for its peers, each after its length",
        )
        .text("application/octet-stream")
        .errors(&[401, 404]),
        get(
            "/admin/replicas/state",
            "getReplicaState",
            "Open requests of this router for its peers",
        )
        .text("application/octet-stream")
        .errors(&[400, 401, 404]),
        // It has cache salts.
        Operation::of_admin(
            Role::Admin,
            ("GET", "/admin/replicas/snapshot"),
            "copyReplicaIndex",
            "A copy of the block index for a new router",
        )
        .text("application/octet-stream")
        .errors(&[401, 404]),
        report::<ModelReports>(
            "/admin/models",
            "listModels",
            "Models with tokenizer and template",
        ),
    ]
}

fn kv_index() -> Vec<Operation> {
    vec![
        report::<KvIndexStats>(
            "/admin/kv-index/stats",
            "getKvIndex",
            "Block index and prefix view",
        ),
        report::<KvIndexBackends>(
            "/admin/kv-index/backends",
            "getKvIndexBackends",
            "The prefix view by worker",
        ),
        post(
            Role::Operate,
            "/admin/kv-index/clear",
            "clearKvIndex",
            "Empty the prefix view",
        )
        .reply::<KvIndexCleared>(200)
        .errors(&[400, 401, 500]),
        report::<KvIndexDigest>(
            "/admin/kv-index/digest",
            "getKvIndexDigest",
            "Digests to compare with another router",
        ),
        get(
            "/admin/kv-index/dump",
            "dumpKvIndex",
            "Every entry of the block index, a JSON line each",
        )
        .reply_as::<KvIndexDumpRow>(200, "application/x-ndjson")
        .errors(&[401]),
        get(
            "/v1/kv_events",
            "streamKvEvents",
            "Changes of the block index as server-sent events",
        )
        .text("text/event-stream")
        .errors(&[400, 401, 503]),
    ]
}

fn response_cache() -> Vec<Operation> {
    vec![
        report::<ResponseCacheStats>(
            "/admin/response-cache/stats",
            "getResponseCache",
            "The response cache",
        ),
        post(
            Role::Operate,
            "/admin/response-cache/invalidate",
            "clearResponseCache",
            "Empty the response cache in every tier",
        )
        .body::<InvalidateRequest>()
        .reply::<CacheCleared>(200)
        .errors(&[400, 401, 500]),
        Operation::of_admin(
            Role::Operate,
            ("DELETE", "/admin/response-cache/entries"),
            "removeCachedReplies",
            "Remove the cached replies of a tenant, of a model, or of both, in every tier",
        )
        .query(
            "tenant",
            "string",
            "Only those of this tenant; one of both is required",
        )
        .query(
            "model",
            "string",
            "Only those of this model, by the name that engines get",
        )
        .reply::<CacheCleared>(200)
        .errors(&[400, 401, 500]),
    ]
}

fn conductor() -> Vec<Operation> {
    let query = |path, id, summary| {
        post(Role::Read, path, id, summary)
            .reply::<OverlapReply>(200)
            .errors_as::<ConductorError>(&[400, 401, 403, 413, 503])
    };
    vec![
        post(
            Role::Admin,
            "/register",
            "registerPublisher",
            "Follow a publisher of KV events",
        )
        .body::<RegisterRequest>()
        .reply::<PublisherRegistered>(200)
        .errors_as::<ConductorError>(&[400, 401, 403, 409, 413, 503]),
        post(
            Role::Admin,
            "/unregister",
            "unregisterPublisher",
            "Follow it no longer",
        )
        .body::<UnregisterRequest>()
        .reply::<PublisherUnregistered>(200)
        .errors_as::<ConductorError>(&[400, 401, 403, 404, 413, 503]),
        query(
            "/query",
            "queryTokens",
            "Who holds the prefix of these token ids",
        )
        .body::<TokenQuery>(),
        query(
            "/query_by_hash",
            "queryHashes",
            "Who holds these block hashes",
        )
        .body::<HashQuery>(),
        // It has cache salts.
        Operation::of_admin(
            Role::Admin,
            ("GET", "/services"),
            "listServices",
            "Registered publishers",
        )
        .reply::<ServiceReports>(200)
        .errors_as::<ConductorError>(&[401]),
        get(
            "/global_view",
            "getGlobalView",
            "Registered instances by model and tenant",
        )
        .reply::<GlobalView>(200)
        .errors_as::<ConductorError>(&[401]),
    ]
}

fn data(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Operation {
    Operation::of_data((method, path), id, summary)
}

fn data_listener() -> Vec<Operation> {
    let probe = |path, id, summary| {
        data("GET", path, id, summary)
            .reply::<ProbeReply>(200)
            .reply::<ProbeReply>(503)
    };
    let reservation = |operation: Operation| {
        operation
            .path_parameter("request_id", "Id of the reservation")
            .reply::<ReservationState>(200)
            .errors(&[401, 404])
    };
    let route = Operation::of_data(
        ("POST", "/v1/route"),
        "route",
        "The decision that a request would get now; with request_id, on the data listener, it is reserved",
    )
    .also_of_admin(Role::Read);
    vec![
        route
            .body::<RouteRequest>()
            .reply::<RouteReply<'_>>(200)
            .errors(&[400, 401, 404, 409, 413, 503]),
        data("GET", "/health", "getHealth", "Health of the router").reply::<HealthReply>(200),
        probe("/livez", "getLiveness", "Whether the process works"),
        probe("/readyz", "getReadiness", "Whether it takes requests"),
        data(
            "POST",
            "/v1/route/potential_loads",
            "getPotentialLoads",
            "Load of each target if it got the request",
        )
        .body::<RouteRequest>()
        .reply::<PotentialLoads>(200)
        .errors(&[400, 401, 404, 413, 503]),
        reservation(data(
            "POST",
            "/v1/route/{request_id}/prefill_complete",
            "completePrefill",
            "The reserved request has its first token",
        )),
        reservation(data(
            "DELETE",
            "/v1/route/{request_id}",
            "freeReservation",
            "The reserved request has ended",
        )),
    ]
}
