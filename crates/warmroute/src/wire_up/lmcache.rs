//! LMCache's controller.

use std::sync::Arc;

use ::lmcache::{Controller, ControllerSettings, Instances, LookupMode, bearer};
use prometheus_client::registry::Registry;
use routing::{LmcacheMode, RoutingSection};

/// Returns the controller, if one is configured. Its URL was checked with the configuration.
pub(super) fn controller(
    routing: &RoutingSection,
    registry: &mut Registry,
) -> Option<Arc<Controller>> {
    let settings = routing.lmcache.as_ref()?;
    let asked = ControllerSettings {
        url: settings.controller_url.parse().ok()?,
        authorization: settings
            .controller_api_key
            .as_ref()
            .and_then(|key| bearer(key.expose())),
        mode: match settings.mode {
            LmcacheMode::Occupancy => LookupMode::Occupancy,
            LmcacheMode::PrefixLookup => LookupMode::PrefixLookup,
        },
        poll_interval: settings.poll_interval,
        timeout: settings.controller_timeout,
        lookup_budget: settings.lookup_budget,
        instances: Instances::new(settings.worker_map.clone()),
    };
    Some(Arc::new(Controller::start(asked, registry)))
}
