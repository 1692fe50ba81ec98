//! Streamable HTTP: one endpoint, no sessions, JSON answers.
//!
//! Without sessions there is nothing to cap, to hijack or to lose at a restart, and both protocol families are served
//! alike. What rmcp leaves to its user is done here: the lists of hosts and origins, the token, the limits of the
//! connection, and JSON-RPC errors for bodies that are none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rmcp::ServerHandler;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::BearerToken;
use crate::{Error, ErrorKind};

/// Settings of the HTTP transport. The endpoint is `/mcp`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpOptions {
    /// The token that every request must carry. Without one, only a loopback address is served.
    pub bearer_token: Option<BearerToken>,
    /// Names that a `Host` header may hold beside `localhost`, `127.0.0.1` and `::1`, with or without a port.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may call, as `https://host:port`; none by default. A request without an `Origin`
    /// header does not come from a web page and is not concerned.
    pub allowed_origins: Vec<String>,
    /// Bytes of a request body (default 4 MiB).
    pub max_body_bytes: usize,
    /// Open connections (default 256). Further ones wait to be accepted.
    pub max_connections: usize,
    /// Time for the head of a request, which is also how long an idle connection is kept (default 60 s).
    pub head_timeout: Duration,
    /// Time for the body of a request (default 30 s).
    pub body_timeout: Duration,
    /// Time for open requests to finish at shutdown (default 5 s).
    pub drain_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            bearer_token: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body_bytes: 4 * 1024 * 1024,
            max_connections: 256,
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

impl HttpOptions {
    /// Refuses an address that other machines can reach while no bearer token is set. Serving checks it too; this is
    /// for asking before the address is bound.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`] for such an address, and for limits of zero.
    pub fn check_address(&self, address: SocketAddr) -> Result<(), Error> {
        if !address.ip().is_loopback() && self.bearer_token.is_none() {
            return Err(Error::configuration(format!(
                "{address} can be reached from other machines; set a bearer token or listen on 127.0.0.1"
            )));
        }
        if self.max_connections == 0 || self.max_body_bytes == 0 {
            return Err(Error::configuration(
                "max_connections and max_body_bytes must be above zero",
            ));
        }
        Ok(())
    }
}

pub(crate) async fn serve_http(
    handler: impl ServerHandler + Clone,
    listener: TcpListener,
    options: HttpOptions,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let address = listener
        .local_addr()
        .map_err(|error| Error::new(ErrorKind::Transport, "the listener has no address").because(error))?;
    options.check_address(address)?;
    let drain = CancellationToken::new();
    let router = router(handler, &options, drain.clone());
    accept(listener, router, &options, cancel, drain).await;
    Ok(())
}

fn router(handler: impl ServerHandler + Clone, options: &HttpOptions, stop: CancellationToken) -> Router {
    let hosts = ["localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_sse_keep_alive(None)
        .with_allowed_hosts(hosts.chain(options.allowed_hosts.iter().cloned()))
        .with_allowed_origins(options.allowed_origins.iter().cloned())
        .enforce_origin_validation()
        .with_max_request_body_bytes(options.max_body_bytes)
        .with_cancellation_token(stop);
    let service = StreamableHttpService::new(
        move || Ok(handler.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    Router::new()
        .route_service("/mcp", service)
        .layer(from_fn_with_state(Arc::new(options.clone()), guard))
}

/// What comes before rmcp: the cheap checks, then the body within its limits.
async fn guard(State(options): State<Arc<HttpOptions>>, request: Request, next: Next) -> Response {
    if is_repeated(request.headers()) {
        return (
            StatusCode::BAD_REQUEST,
            "a header that may stand once is repeated",
        )
            .into_response();
    }
    if options
        .bearer_token
        .as_ref()
        .is_some_and(|token| !token.admits(request.headers()))
    {
        return (
            StatusCode::UNAUTHORIZED,
            [(WWW_AUTHENTICATE, "Bearer")],
            "a bearer token is needed",
        )
            .into_response();
    }
    let (head, body) = request.into_parts();
    let read = axum::body::to_bytes(body, options.max_body_bytes);
    let body = match tokio::time::timeout(options.body_timeout, read).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let text = format!(
                "the body has more than {} bytes or is broken off",
                options.max_body_bytes
            );
            return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
        }
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the body took too long").into_response(),
    };
    let is_json = is_json(&head.headers);
    if is_json && serde_json::from_slice::<serde_json::Value>(&body).is_err() {
        return json_rpc_error(-32700, "the body is not JSON");
    }
    let response = next.run(Request::from_parts(head, Body::from(body))).await;
    // rmcp answers every body that is no single JSON-RPC message as if its content type were wrong.
    if is_json && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return json_rpc_error(-32600, "the body is not one JSON-RPC message");
    }
    response
}

/// rmcp looks at the first of several.
fn is_repeated(headers: &HeaderMap) -> bool {
    [HOST, ORIGIN, CONTENT_TYPE]
        .iter()
        .any(|name| headers.get_all(name).iter().nth(1).is_some())
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| {
            let essence = value.split_once(';').map_or(value, |(essence, _)| essence);
            essence.trim().eq_ignore_ascii_case("application/json")
        })
}

fn json_rpc_error(code: i32, message: &str) -> Response {
    let body = serde_json::json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}});
    (StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
}

/// Serves connections until `cancel` fires; then lets the open requests finish within the drain time.
async fn accept(
    listener: TcpListener,
    router: Router,
    options: &HttpOptions,
    cancel: CancellationToken,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(options.max_connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            // Forgets the connections that ended.
            Some(_) = connections.join_next() => continue,
            accepted = next_connection(&listener, &places) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: wait for some to be given back instead of spinning.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let connection = serve_connection(stream, router.clone(), options.head_timeout, cancel.clone());
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    let drained = tokio::time::timeout(options.drain_timeout, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!("requests were cut off at shutdown");
        stop.cancel();
        connections.shutdown().await;
    }
}

async fn next_connection(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Otherwise an answer that is written in pieces waits some 40 ms for the client to acknowledge the first one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no-delay could not be set");
    }
    Ok((stream, place))
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    head_timeout: Duration,
    cancel: CancellationToken,
) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_connections_do_not_delay_small_writes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _place) = next_connection(&listener, &Arc::new(Semaphore::new(1)))
            .await
            .unwrap();
        assert!(stream.nodelay().unwrap());
    }
}
