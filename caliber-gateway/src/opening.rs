//! Opening a session: credentials, a process or a client, the handshake, the first listing.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use caliber_core::clock::Deadline;
use caliber_core::digest::Fingerprint;
use caliber_core::gateway::BEFORE_LAST_WORDS;
use caliber_core::inventory::Discovery;
use caliber_core::process::{ContainmentMeasure, ProcessLauncher};
use caliber_core::reason::ReasonCode;
use caliber_core::secret::{SecretSource, SecretText};
use caliber_core::server::{Endpoint, RemoteEndpoint, ServerDefinition, StdioEndpoint};
use caliber_core::{ErrorKind, text::shown};
use lru::LruCache;
use tokio::sync::Notify;

use crate::client::{HandshakeError, Introduction, shake_hands};
use crate::connection::Connection;
use crate::credentials::{self, Credentials};
use crate::endpoint::Endpoints;
use crate::error::{Failure, Fate};
use crate::inbox::Inbox;
use crate::listing::list_tools;
use crate::redact::Redactor;
use crate::session::Session;
use crate::settings::{ENVELOPE_BYTES, GatewaySettings};
use crate::transport::sse::Sse;
use crate::transport::stdio::Stdio;
use crate::transport::streamable_http::{HttpTarget, StreamableHttp};
use crate::transport::{Era, Transport};

/// Places whose protocol family is remembered.
const REMEMBERED: usize = 4_096;

/// Opens sessions.
#[derive(Debug)]
pub(crate) struct Opener {
    pub(crate) settings: GatewaySettings,
    pub(crate) endpoints: Endpoints,
    secrets: Arc<dyn SecretSource>,
    launcher: Arc<dyn ProcessLauncher>,
    /// Which family a place spoke last, so that nobody waits for a silent server twice.
    eras: Mutex<LruCache<Fingerprint, Era>>,
}

impl Opener {
    pub(crate) fn new(
        settings: GatewaySettings,
        secrets: Arc<dyn SecretSource>,
        launcher: Arc<dyn ProcessLauncher>,
    ) -> Self {
        Self {
            endpoints: Endpoints::new(settings.endpoints.clone()),
            settings,
            secrets,
            launcher,
            eras: Mutex::new(LruCache::new(
                NonZeroUsize::new(REMEMBERED).unwrap_or(NonZeroUsize::MIN),
            )),
        }
    }

    /// What the launcher does to child processes.
    pub(crate) fn containment(&self) -> Vec<ContainmentMeasure> {
        self.launcher.containment()
    }

    /// Opens a session and hands over what it lists. `wake` is told when its list of tools changes or it ends. Dropping the
    /// future ends what was begun.
    ///
    /// # Errors
    ///
    /// What stands in the way; nothing of a call was sent.
    pub(crate) async fn open(
        &self,
        definition: &ServerDefinition,
        wake: Arc<Notify>,
        deadline: Deadline,
    ) -> Result<(Session, Discovery), Failure> {
        let opening = async {
            let (connection, introduction) = self.introduce(definition, &wake, deadline).await?;
            let listed = list_tools(&connection, &introduction, &self.settings).await;
            let listed = match listed {
                Ok(listed) => listed,
                Err(failure) => return Err(with_stderr(&connection, failure)),
            };
            Ok(Session::new(
                connection,
                introduction,
                definition.fingerprint(),
                listed,
                self.settings.list_interval,
            ))
        };
        match tokio::time::timeout_at(deadline.instant(), opening).await {
            Ok(outcome) => outcome.map_err(Failure::before_call),
            Err(_) => Err(Failure::timeout("opening a session")),
        }
    }

    /// Connects and shakes hands in the family that the server speaks.
    async fn introduce(
        &self,
        definition: &ServerDefinition,
        wake: &Arc<Notify>,
        deadline: Deadline,
    ) -> Result<(Arc<Connection>, Introduction), Failure> {
        let place = definition.fingerprint();
        let remembered = match &definition.endpoint {
            Endpoint::Sse(_) => Some(Era::Legacy),
            _ => self.remembered(place),
        };
        let connection = self.connect(definition, wake, deadline).await?;
        if let Some(era) = remembered {
            match shake_hands(&connection, era).await {
                Ok(introduction) => return Ok((connection, introduction)),
                // It answers, and not as before: the server may have been exchanged for another.
                Err(HandshakeError::Refused { .. }) if !matches!(definition.endpoint, Endpoint::Sse(_)) => {
                    self.forget(place);
                }
                Err(error) => {
                    self.forget(place);
                    return Err(with_stderr(&connection, error.into_failure()));
                }
            }
        }
        let connection = self.revive(connection, definition, wake, deadline).await?;
        let (connection, introduction) = self.probe(connection, definition, wake, deadline).await?;
        self.remember(place, introduction.era);
        Ok((connection, introduction))
    }

    /// Asks the modern question first; anything but a modern answer, silence included, leads to `initialize`.
    async fn probe(
        &self,
        connection: Arc<Connection>,
        definition: &ServerDefinition,
        wake: &Arc<Notify>,
        deadline: Deadline,
    ) -> Result<(Arc<Connection>, Introduction), Failure> {
        let patience = self.settings.probe.min(deadline.remaining() / 4);
        let answered = match tokio::time::timeout(patience, shake_hands(&connection, Era::Modern)).await {
            Ok(Ok(introduction)) => return Ok((connection, introduction)),
            Ok(Err(HandshakeError::Refused {
                modern: true,
                failure,
            })) => return Err(failure),
            Ok(Err(HandshakeError::Failed(failure))) if !may_be_the_other_family(&failure) => {
                return Err(failure);
            }
            Ok(Err(_)) => true,
            Err(_) => false,
        };
        // Some legacy servers end when they meet a message before `initialize`.
        let connection = self.revive(connection, definition, wake, deadline).await?;
        match shake_hands(&connection, Era::Legacy).await {
            Ok(introduction) => Ok((connection, introduction)),
            // A modern server that was only slow.
            Err(HandshakeError::Refused { failure, .. }) if !answered => {
                match shake_hands(&connection, Era::Modern).await {
                    Ok(introduction) => Ok((connection, introduction)),
                    Err(_) => Err(failure),
                }
            }
            Err(error) => Err(with_stderr(&connection, error.into_failure())),
        }
    }

    /// The same connection, or a new one when it has ended.
    async fn revive(
        &self,
        connection: Arc<Connection>,
        definition: &ServerDefinition,
        wake: &Arc<Notify>,
        deadline: Deadline,
    ) -> Result<Arc<Connection>, Failure> {
        if connection.inbox.closed().is_none() {
            return Ok(connection);
        }
        self.connect(definition, wake, deadline).await
    }

    async fn connect(
        &self,
        definition: &ServerDefinition,
        wake: &Arc<Notify>,
        deadline: Deadline,
    ) -> Result<Arc<Connection>, Failure> {
        let resolved = credentials::resolve(definition, self.secrets.as_ref()).await;
        let Credentials { headers, env } =
            resolved.map_err(|error| Failure::of(&error, ReasonCode::SecretUnresolved))?;
        let redactor = Arc::new(Redactor::new(
            env.values().cloned().chain(
                headers
                    .values()
                    .filter_map(|value| value.to_str().ok())
                    .flat_map(secrets_in_header),
            ),
        ));
        let inbox = Arc::new(Inbox::new(Arc::clone(wake)));
        let transport = match &definition.endpoint {
            Endpoint::Stdio(endpoint) => {
                let parts = (Arc::clone(&inbox), Arc::clone(&redactor));
                Transport::Stdio(self.start(definition, endpoint, env, parts).await?)
            }
            Endpoint::StreamableHttp(remote) => {
                let target = self.target(remote, headers, deadline).await?;
                Transport::Http(StreamableHttp::new(target, Arc::clone(&inbox)))
            }
            Endpoint::Sse(remote) => {
                let target = self.target(remote, headers, deadline).await?;
                let event_bytes = self.message_bytes(definition);
                Transport::Sse(Sse::connect(target, Arc::clone(&inbox), event_bytes).await?)
            }
            other => {
                let text = format!("this gateway knows no transport {}", shown(other.transport()));
                return Err(Failure::connect(text));
            }
        };
        Ok(Arc::new(Connection::new(transport, inbox, redactor)))
    }

    async fn start(
        &self,
        definition: &ServerDefinition,
        endpoint: &StdioEndpoint,
        env: std::collections::BTreeMap<String, SecretText>,
        (inbox, redactor): (Arc<Inbox>, Arc<Redactor>),
    ) -> Result<Stdio, Failure> {
        let launch = self.endpoints.launch_spec(endpoint, env).await;
        let launch = launch.map_err(|error| Failure::of(&error, ReasonCode::ConnectFailed))?;
        let process = self.launcher.launch(launch).await;
        let process = process.map_err(|error| Failure::of(&error, ReasonCode::ConnectFailed))?;
        Ok(Stdio::new(
            process,
            inbox,
            redactor,
            self.message_bytes(definition),
            self.settings.farewell,
        ))
    }

    async fn target(
        &self,
        remote: &RemoteEndpoint,
        headers: http::HeaderMap,
        deadline: Deadline,
    ) -> Result<HttpTarget, Failure> {
        let client = self.endpoints.remote_client(remote, deadline).await;
        let (client, url) = client.map_err(|error| Failure::of(&error, ReasonCode::ConnectFailed))?;
        Ok(HttpTarget {
            client,
            url,
            headers,
            stream_bytes: self.settings.stream_bytes,
        })
    }

    /// The largest message of a server.
    fn message_bytes(&self, definition: &ServerDefinition) -> usize {
        let result_bytes = definition.limits.result_bytes.unwrap_or_default();
        let result_bytes = usize::try_from(result_bytes).unwrap_or(usize::MAX);
        result_bytes
            .saturating_add(ENVELOPE_BYTES)
            .max(self.settings.message_bytes)
    }

    fn remembered(&self, place: Fingerprint) -> Option<Era> {
        let mut eras = self.eras.lock().unwrap_or_else(PoisonError::into_inner);
        eras.get(&place).copied()
    }

    fn remember(&self, place: Fingerprint, era: Era) {
        let mut eras = self.eras.lock().unwrap_or_else(PoisonError::into_inner);
        eras.put(place, era);
    }

    fn forget(&self, place: Fingerprint) {
        let mut eras = self.eras.lock().unwrap_or_else(PoisonError::into_inner);
        eras.pop(&place);
    }
}

/// Whether a server of the other protocol family could have answered like this: it was reached, and our credentials
/// were not the point.
fn may_be_the_other_family(failure: &Failure) -> bool {
    !matches!(
        failure.reason,
        ReasonCode::OauthUnsupported | ReasonCode::UpstreamUnauthorized
    ) && (failure.reason != ReasonCode::ConnectFailed || failure.fate != Fate::NotSent)
        && failure.kind != ErrorKind::Unavailable
}

/// What a server that fails to open a session complains about.
fn with_stderr(connection: &Connection, mut failure: Failure) -> Failure {
    if failure.fate == Fate::Answered
        && let Some(tail) = connection.transport.stderr_tail()
    {
        let tail = crate::error::upstream_text_end(&tail);
        failure.message = format!("{}{BEFORE_LAST_WORDS}{tail}", failure.message);
    }
    failure
}

/// A header value, the part behind a scheme such as `Bearer`, and the password in it.
fn secrets_in_header(value: &str) -> Vec<SecretText> {
    let mut secrets = vec![SecretText::new(value)];
    if let Some((_, rest)) = value.split_once(' ') {
        secrets.push(SecretText::new(rest));
        let decoded = BASE64_STANDARD.decode(rest).ok();
        let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some((_, password)) = decoded.as_deref().and_then(|text| text.split_once(':')) {
            secrets.push(SecretText::new(password));
        }
    }
    secrets
}
