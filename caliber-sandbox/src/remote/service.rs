//! The service: a sandbox of this machine, over HTTP, for whoever holds the token.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use caliber_core::clock::Deadline;
use caliber_core::sandbox::Sandbox as _;
use caliber_core::{Error, ErrorKind, Result};
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::token::ServiceToken;
use super::wire::{ErrorWire, InspectWire, OutcomeWire, PinWire, RunWire};
use crate::sandbox::LocalSandbox;

/// Connections that are still served, with the health route only, when all others are taken.
const SPARE_CONNECTIONS: usize = 32;
/// How long such a connection may take for its request.
const SPARE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest deadline of an operation.
const LONGEST: Duration = Duration::from_secs(2 * 60 * 60);

/// How the service is offered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceOptions {
    /// The token that every request but that for health must carry.
    pub token: ServiceToken,
    /// The certificate and key; without them only a loopback address is served.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Serves other addresses without TLS, because something in front of it, on a network of its own, speaks TLS.
    /// Default: false.
    pub behind_tls: bool,
    /// Bytes of a request body; default 8 MiB.
    pub max_body_bytes: usize,
    /// Open connections; default 512. A run takes one for as long as it lasts. Further ones are answered as to health,
    /// and are else told to come later.
    pub max_connections: usize,
    /// Time for the head of a request, which is also how long an idle connection is kept, and for the TLS handshake;
    /// default 30 s.
    pub head_timeout: Duration,
    /// Time for the body of a request; default 30 s.
    pub body_timeout: Duration,
    /// Time for open requests to finish at shutdown; default 10 s.
    pub drain_timeout: Duration,
}

impl ServiceOptions {
    /// The defaults, with `token`.
    pub fn new(token: ServiceToken) -> Self {
        Self {
            token,
            tls: None,
            behind_tls: false,
            max_body_bytes: 8 << 20,
            max_connections: 512,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
        }
    }

    /// Refuses an address at which tools' arguments and secrets would be readable on the way. Serving checks it too;
    /// this is for asking before the address is bound.
    ///
    /// # Errors
    ///
    /// `Invalid` for such an address, and for limits of zero.
    pub fn check_address(&self, address: SocketAddr) -> Result<()> {
        if !address.ip().is_loopback() && self.tls.is_none() && !self.behind_tls {
            return Err(Error::invalid(
                "listen",
                format!(
                    "{address} can be reached from other machines; give the service a certificate, or let it listen on 127.0.0.1"
                ),
            ));
        }
        if self.max_connections == 0 || self.max_body_bytes == 0 {
            return Err(Error::invalid(
                "max_connections",
                "max_connections and max_body_bytes must be above zero",
            ));
        }
        Ok(())
    }
}

/// Serves `sandbox` until `cancel` fires; then lets open requests finish within the drain time. The sandbox is not
/// closed. A request whose connection ends is given up, and its run killed.
///
/// # Errors
///
/// `Invalid` as [`ServiceOptions::check_address`].
pub async fn serve(
    sandbox: Arc<LocalSandbox>,
    listener: TcpListener,
    options: ServiceOptions,
    cancel: CancellationToken,
) -> Result<()> {
    let address = listener.local_addr().map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the listener has no address").with_source(error)
    })?;
    options.check_address(address)?;
    let rooms = Rooms {
        main: Arc::new(Semaphore::new(
            options.max_connections.min(Semaphore::MAX_PERMITS),
        )),
        spare: Arc::new(Semaphore::new(SPARE_CONNECTIONS)),
    };
    let drain_timeout = options.drain_timeout;
    let service = Arc::new(Service { sandbox, options });
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            // Forgets the connections that ended.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                // Beyond both rooms the connection is closed at once.
                if let Some((place, is_spare)) = rooms.enter() {
                    let connection = Arc::clone(&service).connection(stream, is_spare, cancel.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: wait for some to be given back instead of spinning.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let drained = tokio::time::timeout(drain_timeout, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!("requests were cut off at shutdown");
        connections.shutdown().await;
    }
    Ok(())
}

struct Rooms {
    main: Arc<Semaphore>,
    spare: Arc<Semaphore>,
}

impl Rooms {
    fn enter(&self) -> Option<(OwnedSemaphorePermit, bool)> {
        if let Ok(place) = Arc::clone(&self.main).try_acquire_owned() {
            return Some((place, false));
        }
        let place = Arc::clone(&self.spare).try_acquire_owned().ok()?;
        Some((place, true))
    }
}

#[derive(Debug)]
struct Service {
    sandbox: Arc<LocalSandbox>,
    options: ServiceOptions,
}

type Answer = Response<Full<Bytes>>;

impl Service {
    async fn connection(self: Arc<Self>, stream: TcpStream, is_spare: bool, cancel: CancellationToken) {
        // Otherwise an answer that is written in pieces waits for the client to acknowledge the first one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no-delay could not be set");
        }
        let timeout = match is_spare {
            true => SPARE_TIMEOUT.min(self.options.head_timeout),
            false => self.options.head_timeout,
        };
        match self.options.tls.clone() {
            None => self.http(stream, is_spare, timeout, cancel).await,
            Some(tls) => match tokio::time::timeout(timeout, TlsAcceptor::from(tls).accept(stream)).await {
                Ok(Ok(stream)) => self.http(stream, is_spare, timeout, cancel).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            },
        }
    }

    async fn http(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        is_spare: bool,
        timeout: Duration,
        cancel: CancellationToken,
    ) {
        let service = service_fn(|request| {
            let service = Arc::clone(&self);
            async move { Ok::<_, Infallible>(service.answer(request, is_spare).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeout)
            .keep_alive(!is_spare)
            .max_headers(64)
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

    async fn answer(&self, request: Request<Incoming>, is_spare: bool) -> Answer {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        // Asks for nothing, and touches nothing that a run could hold up.
        if (&method, path.as_str()) == (&Method::GET, "/health") {
            return json(StatusCode::OK, &serde_json::json!({"status": "ok"}));
        }
        if is_spare {
            let busy = Error::new(
                ErrorKind::Unavailable,
                "every connection of the sandbox service is taken",
            )
            .with_reason(caliber_core::reason::ReasonCode::SandboxBusy);
            return refusal(&busy);
        }
        if !self.options.token.admits(request.headers()) {
            let unknown = Error::new(
                ErrorKind::Unauthenticated,
                "the token of the sandbox service is needed",
            );
            let mut answer = refusal(&unknown);
            let headers = answer.headers_mut();
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        }
        let answered = match (&method, path.as_str()) {
            (&Method::GET, "/v1/report") => Ok(json(StatusCode::OK, &*self.sandbox.report())),
            (&Method::POST, "/v1/pin") => self.pin(request).await,
            (&Method::POST, "/v1/inspect") => self.inspect(request).await,
            (&Method::POST, "/v1/run") => self.run(request).await,
            _ => Err(Error::new(
                ErrorKind::NotFound,
                "the sandbox service has no such route",
            )),
        };
        answered.unwrap_or_else(|error| refusal(&error))
    }

    async fn pin(&self, request: Request<Incoming>) -> Result<Answer> {
        let question: PinWire = self.read(request).await?;
        let deadline = deadline(question.left_ms);
        let pinned = self.sandbox.pin(&question.program, deadline).await?;
        Ok(json(StatusCode::OK, &pinned))
    }

    async fn inspect(&self, request: Request<Incoming>) -> Result<Answer> {
        let question: InspectWire = self.read(request).await?;
        let deadline = deadline(question.left_ms);
        let reflection = self.sandbox.inspect(&question.program, deadline).await?;
        Ok(json(StatusCode::OK, &reflection))
    }

    async fn run(&self, request: Request<Incoming>) -> Result<Answer> {
        let question: RunWire = self.read(request).await?;
        let mut request = question.into_request();
        request.deadline = request.deadline.min(Deadline::after(LONGEST));
        let outcome = self.sandbox.run_unadmitted(request).await?;
        Ok(json(StatusCode::OK, &OutcomeWire::from(outcome)))
    }

    /// Reads a body within its limits. The text of an error does not repeat it: it may hold secrets.
    async fn read<T: DeserializeOwned>(&self, request: Request<Incoming>) -> Result<T> {
        let is_json = request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"application/json"));
        if !is_json {
            return Err(Error::invalid("content-type", "must be application/json"));
        }
        let limit = self.options.max_body_bytes;
        let body = Limited::new(request.into_body(), limit).collect();
        let body = match tokio::time::timeout(self.options.body_timeout, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("the body has more than {limit} bytes or is broken off"),
                ));
            }
            Err(_) => return Err(Error::new(ErrorKind::Timeout, "the body took too long")),
        };
        serde_json::from_slice(&body).map_err(|error| {
            Error::invalid(
                "body",
                format!(
                    "is not the JSON of this route, at line {} column {}",
                    error.line(),
                    error.column()
                ),
            )
        })
    }
}

fn deadline(left_ms: u64) -> Deadline {
    Deadline::after(Duration::from_millis(left_ms).min(LONGEST))
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    match serde_json::to_vec(body) {
        Ok(body) => {
            let mut answer = Response::new(Full::new(Bytes::from(body)));
            *answer.status_mut() = status;
            let headers = answer.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            answer
        }
        Err(_) => {
            let mut answer = Response::new(Full::default());
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            answer
        }
    }
}

fn refusal(error: &Error) -> Answer {
    let wire = ErrorWire::of(error);
    let status = StatusCode::from_u16(wire.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, &wire)
}
