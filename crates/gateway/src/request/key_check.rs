//! The check of a request's key: its tenant, and the wait of an address that sent too many wrong
//! keys.

use dialect::{ApiError, ErrorCode};
use http::HeaderMap;
use kv_blocks::Moment;
use net::server::PeerAddress;
use tenants::{Scope, TenantPermit};

use super::{
    accept::{AcceptedRequest, Admission, RequestHead, RequestSender},
    origin,
};
use crate::{
    client_key::{self, ArrivalTime, PresentedKey, RouteAccess},
    errors,
    routes::RouteHandler,
};

/// A request whose key is checked.
#[derive(Clone, Copy, Debug)]
struct KeyedRequest<'a> {
    headers: &'a HeaderMap,
    received: Moment,
    sender: RequestSender,
}

impl Admission {
    /// Checks the key, and takes the request's place among those of its tenant.
    pub(super) async fn check_key(
        &self,
        head: &RequestHead,
        scope: Scope,
    ) -> Result<TenantPermit, ApiError> {
        let request = KeyedRequest {
            headers: &head.parts.headers,
            received: head.arrival.received,
            sender: head.arrival.sender,
        };
        let table = self.tenants.table();
        if !table.requires_key() {
            let peer = request.sender.share;
            origin::check_page(&self.server, request.headers, peer, head.route.body)?;
        }
        let mut received = request.received;
        if let (Some(validator), Some(keys)) = (&self.key_validator, table.validated())
            && let PresentedKey::Key(key) = PresentedKey::of(request.headers)
        {
            let may_ask = || self.may_ask(request);
            Box::pin(validator.learn(keys, key, may_ask)).await?;
            received = self.clock.now();
        }
        let access = RouteAccess {
            scope,
            releases: matches!(
                head.route.endpoint,
                RouteHandler::PrefillComplete | RouteHandler::FreeReservation
            ),
        };
        client_key::admit(&table, request.headers, access, self.arrived(received))
            .map_err(|refused| self.throttled(refused, request))
    }

    /// Returns whether the caller of a route that needs no key may read the names of models and
    /// workers: it sent a valid key, or no route needs one. No service is asked about a key. A wrong
    /// one counts as on any route, so that a guess is no quieter here.
    pub(super) fn may_read_names(&self, call: &AcceptedRequest) -> bool {
        let request = KeyedRequest {
            headers: &call.headers,
            received: call.received,
            sender: call.sender,
        };
        let table = self.tenants.table();
        let checked = client_key::check(&table, request.headers, self.arrived(request.received));
        let is_wrong = |refused: &ApiError| refused.code == ErrorCode::InvalidApiKey;
        if checked.as_ref().is_err_and(is_wrong) {
            // No wait: probes are answered whatever they send.
            self.wrong_keys
                .record_wrong_key(self.client(request), request.received);
        }
        checked.is_ok()
    }

    fn arrived(&self, received: Moment) -> ArrivalTime {
        ArrivalTime {
            received,
            unix_s: self.clock.unix_s(),
        }
    }

    fn client(&self, request: KeyedRequest<'_>) -> PeerAddress {
        origin::client_address(&self.server, request.headers, request.sender)
    }

    /// Lets no unknown key of an address that has sent too many wrong ones come to the services.
    fn may_ask(&self, request: KeyedRequest<'_>) -> Result<(), ApiError> {
        let client = self.client(request);
        let wait = self.wrong_keys.wait_without_key(client, request.received);
        wait.map_or(Ok(()), |wait| Err(errors::too_many_wrong_keys(wait)))
    }

    /// Replaces the refusal of a wrong or missing key while its address has sent too many.
    fn throttled(&self, refused: ApiError, request: KeyedRequest<'_>) -> ApiError {
        let received = request.received;
        let client = || self.client(request);
        let wait = match refused.code {
            ErrorCode::InvalidApiKey => self.wrong_keys.record_wrong_key(client(), received),
            ErrorCode::MissingApiKey => self.wrong_keys.wait_without_key(client(), received),
            _ => None,
        };
        wait.map_or(refused, errors::too_many_wrong_keys)
    }
}
