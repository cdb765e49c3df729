//! The sockets of a router, bound before anything else is started.

use config::Settings;
use net::{ListenAddr, Listener, Listeners};

use super::{StartError, address};
use crate::encryption::{encrypted, identity};

/// Bound sockets, and the place that is bound by whoever serves it.
pub(super) struct Bound {
    pub(super) data: Listeners,
    pub(super) admin: Listener,
    pub(super) probe: Option<ListenAddr>,
}

/// Binds what the settings name.
pub(super) async fn bind(settings: &Settings) -> Result<Bound, StartError> {
    let (server, admin) = (&settings.server, &settings.admin);
    let (server_tls, admin_tls) = (identity(server.tls.as_ref())?, identity(admin.tls.as_ref())?);
    let data = net::listen(&address(&server.listen).chosen_by("--port")).await?;
    let mut others = Vec::new();
    for place in &server.also_listen {
        let other = net::listen(&address(place).chosen_by("server.also_listen")).await?;
        others.push(encrypted(other, server_tls.as_ref()));
    }
    let admin = net::listen(&address(&admin.listen).chosen_by("--admin-listen")).await?;
    Ok(Bound {
        data: Listeners::new(encrypted(data, server_tls.as_ref()), others),
        admin: encrypted(admin, admin_tls.as_ref()),
        probe: server.probe_listen.as_ref().map(|place| address(place).chosen_by("server.probe_listen")),
    })
}
