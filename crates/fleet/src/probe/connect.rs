//! The connect probe: is the port open?

use std::{io, time::Duration};

use net::WorkerUrl;

use crate::worker_machine::ConnectFailure;

/// Opens and closes a connection.
pub(crate) async fn connect(url: &WorkerUrl, limit: Duration) -> Result<(), ConnectFailure> {
    match url.destinations().connect(&url.address(), limit).await {
        Ok(_open) => Ok(()),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) =>
        {
            Err(ConnectFailure::Refused)
        }
        Err(_) => Err(ConnectFailure::Other),
    }
}
