//! Running the API on a listener, within its limits, until it is told to end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use caliber_core::Caliber;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::error::{Error, Result};
use crate::router::routes;
use crate::settings::{Authentication, HttpSettings};
use crate::stall::StallGuard;
use crate::state::Api;

/// How long accepting waits after the machine refused a connection, for example for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the API on `listener` until `cancel`; then no connection is accepted any more, requests under way may
/// end within [`HttpSettings::grace`], and what is left is dropped. Nothing else runs: the background work of
/// the control plane is [`Caliber::run`], beside this.
///
/// # Errors
///
/// [`Error::Setting`] and [`Error::OpenBeyondLoopback`], before a connection is accepted.
pub async fn serve(
    listener: TcpListener,
    caliber: Caliber,
    settings: HttpSettings,
    cancel: CancellationToken,
) -> Result<()> {
    settings.validate()?;
    let address = listener.local_addr().map_err(Error::Listener)?;
    let open = settings.authentication == Authentication::OpenOnLoopback;
    if open && !address.ip().to_canonical().is_loopback() {
        return Err(Error::OpenBeyondLoopback { address });
    }
    let grace = settings.grace;
    let api = Api::new(caliber, settings);
    let mut connections = JoinSet::new();
    accept(&listener, &api, &mut connections, &cancel).await;
    drop(listener);
    let drained =
        tokio::time::timeout(grace, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!(
            left = connections.len(),
            "requests were dropped at the end of the grace period"
        );
        connections.shutdown().await;
    }
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    api: &Api,
    connections: &mut JoinSet<()>,
    cancel: &CancellationToken,
) {
    let router = routes(api.clone());
    let slots = Arc::new(Semaphore::new(api.settings().max_connections));
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            Some(_) = connections.join_next() => continue,
            accepted = async {
                let slot = Arc::clone(&slots).acquire_owned().await;
                (slot, listener.accept().await)
            } => accepted,
        };
        match accepted {
            (Ok(slot), Ok((stream, peer))) => {
                let connection = connection(stream, peer, router.clone(), api.clone(), cancel.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            (_, Err(error)) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            // Nobody closes the semaphore.
            (Err(_), _) => return,
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    api: Api,
    cancel: CancellationToken,
) {
    let settings = api.settings();
    // Without it a small answer may wait some 40 ms for the client's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = router.clone().oneshot(request.map(axum::body::Body::new));
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never: Infallible| match never {})) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(settings.header_bytes)
        .max_headers(100);
    let stream = TokioIo::new(StallGuard::new(stream, settings.write_timeout));
    api.metrics().connections.inc();
    let mut connection = pin!(builder.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    api.metrics().connections.dec();
    if let Err(error) = ended {
        // Clients go away and send nonsense; neither is our fault.
        tracing::debug!(%error, %peer, "a connection ended early");
    }
}
