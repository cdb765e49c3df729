//! Requests of this process itself, which come over no connection.

use bytes::Bytes;
use http::{Request, Response};
use net::server::PeerAddress;
use proxy::RequestBody;

use crate::{
    CurrentGateway, GuardedBody,
    request::{self, RequestSender},
};

impl CurrentGateway {
    /// Answers a request of any route of the data listener. Dropping the future, or the body of the
    /// reply, cancels the request, as a client does that leaves.
    pub async fn answer(&self, request: Request<Bytes>) -> Response<GuardedBody> {
        let sender = RequestSender {
            share: PeerAddress::Local,
            address: None,
        };
        let request = request.map(RequestBody::of_length);
        Box::pin(request::answer(self.current(), request, sender)).await
    }

    /// Aborts the requests that run, and those that begin later.
    pub fn abort_requests(&self) {
        self.current().lifecycle.abort.abort();
    }
}
