//! Converts where that router serves its metrics.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Conversion;
use crate::source_config::UnreadFields;

/// Our key of the listener.
const OURS: &str = "metrics.listen";
/// Port of a section that names none.
const USUAL_PORT: u16 = 29_000;

impl Conversion {
    /// Converts two keys to one of ours. Without a host it is loopback, as by default there; a
    /// listener for other machines needs a token here.
    pub(super) fn metrics(&mut self, top: &mut UnreadFields<'_>) {
        let Some(mut metrics) = self.section(top, "metrics") else {
            return;
        };
        let (host, port) = (metrics.take("host"), metrics.take("port"));
        let place = match &host {
            Some(host) => host.place(),
            None => metrics.place("port", port.as_ref()),
        };
        let port = self.port(port.as_ref()).unwrap_or(USUAL_PORT);
        let address = host
            .and_then(|host| self.host(host))
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let listen = SocketAddr::new(address, port);
        self.set(OURS, format!("\"{listen}\""), &place);
        if !address.is_loopback() {
            let note = "others can reach this: set admin.token_file, and send the token in scrapes";
            self.ours.note(OURS, note.to_owned());
        }
        self.given.leave(metrics);
    }
}
