//! rmcp's client over one of our connections: it shakes hands and negotiates the revision.
//!
//! rmcp sees typed messages; the connection carries text. After the handshake `tools/list` and `tools/call` go
//! over the same connection beside rmcp, because its models drop unknown fields, refuse unknown content and round
//! numbers.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use caliber_core::json::{JsonLimits, JsonText};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientJsonRpcMessage, ErrorCode, Implementation, ProtocolVersion,
    RequestMetaObject, ServerJsonRpcMessage,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RoleClient, RunningService,
    serve_client_with_lifecycle_and_ct,
};
use rmcp::transport::Transport;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Request};
use crate::error::{Failure, upstream_text};
use crate::raw::RpcError;
use crate::transport::Era;

/// What is put into `initialize`. rmcp would put the newest revision there, which has no `initialize`.
const LEGACY_VERSION: ProtocolVersion = ProtocolVersion::V_2025_11_25;
/// What is asked for with `server/discover`.
const MODERN_VERSION: ProtocolVersion = ProtocolVersion::V_2026_07_28;
/// The largest answer of a handshake, in bytes.
const HANDSHAKE_BYTES: usize = 1 << 20;
/// The longest instructions that are kept, in bytes.
const INSTRUCTIONS_BYTES: usize = 64 << 10;

/// What a handshake told.
#[derive(Clone, Debug)]
pub(crate) struct Introduction {
    pub(crate) era: Era,
    /// The revision that is spoken.
    pub(crate) version: String,
    /// What every request of the modern family carries in `_meta`, as JSON text.
    pub(crate) meta: Option<String>,
    /// What the server says about itself, as it arrived.
    pub(crate) server_info: Option<JsonText>,
    pub(crate) instructions: Option<String>,
    /// Whether it says that it has tools.
    pub(crate) has_tools: bool,
    /// Whether it says that it tells of changes to them.
    pub(crate) tells_changes: bool,
}

/// How a handshake fails.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The upstream answered that it does not do this.
    Refused {
        /// Whether only a server of the modern family gives such an answer.
        modern: bool,
        failure: Failure,
    },
    /// Anything else.
    Failed(Failure),
}

impl HandshakeError {
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Refused { failure, .. } | Self::Failed(failure) => failure,
        }
    }
}

/// Shakes hands. Dropping the future ends the attempt; the connection can be used for another.
///
/// # Errors
///
/// See [`HandshakeError`].
pub(crate) async fn shake_hands(
    connection: &Arc<Connection>,
    era: Era,
) -> Result<Introduction, HandshakeError> {
    let config = ClientConfig::new(
        // Nothing is offered: no sampling, no roots, no elicitation.
        ClientCapabilities::default(),
        Implementation::new("caliber", env!("CARGO_PKG_VERSION")),
    )
    .with_protocol_version(LEGACY_VERSION);
    let mode = match era {
        Era::Legacy => ClientLifecycleMode::Initialize,
        Era::Modern => ClientLifecycleMode::Discover {
            preferred_versions: vec![MODERN_VERSION],
        },
    };
    let record = Arc::new(Mutex::new(Record::default()));
    let transport = RmcpTransport {
        connection: Arc::clone(connection),
        era,
        under_way: FuturesUnordered::new(),
        record: Arc::clone(&record),
    };
    let served =
        serve_client_with_lifecycle_and_ct(config.clone(), transport, mode, CancellationToken::new()).await;
    let record = std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
    match served {
        Ok(service) => introduction(service, config, era, &record).await,
        Err(error) => Err(handshake_error(connection, error, record)),
    }
}

/// What passed by during a handshake.
#[derive(Debug, Default)]
struct Record {
    /// The text of the last result.
    result: Option<String>,
    /// Why the connection failed.
    failure: Option<Failure>,
}

async fn introduction(
    service: RunningService<RoleClient, ClientConfig>,
    config: ClientConfig,
    era: Era,
    record: &Record,
) -> Result<Introduction, HandshakeError> {
    let info = service.peer().peer_info();
    // Its work is done; the connection goes on.
    drop(service.cancel().await);
    let Some(info) = info else {
        return Err(HandshakeError::Failed(Failure::protocol(
            "the upstream did not introduce itself",
        )));
    };
    let version = &info.protocol_version;
    let known = ProtocolVersion::KNOWN_VERSIONS.contains(version);
    if !known || version.has_initialize() != (era == Era::Legacy) {
        return Err(HandshakeError::Failed(Failure::protocol(format!(
            "the upstream speaks protocol revision {}, which is not supported here",
            upstream_text(version.as_str())
        ))));
    }
    let meta = match era {
        Era::Legacy => None,
        Era::Modern => {
            let meta = RequestMetaObject::with_client_context(
                version.clone(),
                config.client_info,
                config.capabilities,
            );
            serde_json::to_string(&meta).ok()
        }
    };
    let result = record
        .result
        .as_ref()
        .and_then(|text| JsonText::parse(text.as_str(), JsonLimits::DESCRIPTOR).ok());
    let server_info = result.as_ref().and_then(|result| match era {
        Era::Legacy => result.member("serverInfo"),
        Era::Modern => result
            .member("_meta")
            .and_then(|meta| meta.member("io.modelcontextprotocol/serverInfo")),
    });
    let tools = info.capabilities.tools.as_ref();
    Ok(Introduction {
        era,
        version: version.to_string(),
        meta,
        server_info,
        instructions: info
            .instructions
            .clone()
            .filter(|text| text.len() <= INSTRUCTIONS_BYTES),
        has_tools: tools.is_some(),
        tells_changes: tools.is_some_and(|tools| tools.list_changed == Some(true)),
    })
}

fn handshake_error(connection: &Connection, error: ClientInitializeError, record: Record) -> HandshakeError {
    if let Some(failure) = record.failure {
        return HandshakeError::Failed(failure);
    }
    match error {
        ClientInitializeError::JsonRpcError(error) => {
            let modern = matches!(
                error.code,
                ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
                    | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
                    | ErrorCode::HEADER_MISMATCH
            );
            let error = RpcError {
                code: i64::from(error.code.0),
                message: error.message.into_owned(),
                data: None,
            };
            HandshakeError::Refused {
                modern,
                failure: refusal(connection, "the handshake", &error),
            }
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let versions: Vec<_> = server_supported
                .iter()
                .take(8)
                .map(|version| upstream_text(version.as_str()))
                .collect();
            HandshakeError::Refused {
                modern: true,
                failure: Failure::protocol(format!(
                    "the upstream speaks none of our protocol revisions, but {}",
                    versions.join(", ")
                )),
            }
        }
        _ => HandshakeError::Failed(Failure::protocol(
            "the upstream answered the handshake with something else",
        )),
    }
}

/// An error answer of an upstream, as a failure of `what`.
pub(crate) fn refusal(connection: &Connection, what: &str, error: &RpcError) -> Failure {
    let message = connection.redactor.redact(&error.message);
    Failure::upstream(format!(
        "the upstream answered {what} with error {}: {}",
        error.code,
        upstream_text(&message)
    ))
}

/// What rmcp talks to during the handshake.
struct RmcpTransport {
    connection: Arc<Connection>,
    era: Era,
    under_way: FuturesUnordered<BoxFuture<'static, Result<ServerJsonRpcMessage, Failure>>>,
    record: Arc<Mutex<Record>>,
}

/// rmcp wants an error that is one; the failure itself is in the record.
#[derive(Debug, thiserror::Error)]
#[error("the connection failed")]
struct ConnectionFailed;

impl Transport<RoleClient> for RmcpTransport {
    type Error = ConnectionFailed;

    fn send(
        &mut self,
        item: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), ConnectionFailed>> + Send + 'static {
        let connection = Arc::clone(&self.connection);
        let record = Arc::clone(&self.record);
        let notification = match item {
            ClientJsonRpcMessage::Request(request) => {
                // Its answer is fetched by `receive`.
                let id = request.id.clone();
                let text = serde_json::to_string(&request);
                let era = self.era;
                self.under_way.push(Box::pin(async move {
                    let request =
                        text.map_err(|_| Failure::protocol("a handshake message cannot be written"))?;
                    ask(&connection, &request, &id, era, &record).await
                }));
                None
            }
            ClientJsonRpcMessage::Notification(notification) => Some(serde_json::to_string(&notification)),
            // The inbox answers the upstream's own requests.
            _ => None,
        };
        let connection = Arc::clone(&self.connection);
        let record = Arc::clone(&self.record);
        async move {
            let Some(text) = notification else {
                return Ok(());
            };
            let text = text.map_err(|_| ConnectionFailed)?;
            let parts: Parts<'_> = serde_json::from_str(&text).map_err(|_| ConnectionFailed)?;
            let params = parts.params.map_or("{}", RawValue::get);
            // A legacy server expects its revision in a header from here on.
            let version = negotiated_version(&record);
            let sent = connection.notify(parts.method, params, version.as_deref()).await;
            sent.map_err(|failure| {
                record.lock().unwrap_or_else(PoisonError::into_inner).failure = Some(failure);
                ConnectionFailed
            })
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        match self.under_way.next().await {
            Some(Ok(message)) => Some(message),
            Some(Err(failure)) => {
                self.record.lock().unwrap_or_else(PoisonError::into_inner).failure = Some(failure);
                None
            }
            // Nothing was asked, so nothing will come.
            None => std::future::pending().await,
        }
    }

    async fn close(&mut self) -> Result<(), ConnectionFailed> {
        Ok(())
    }
}

/// The parts of a message that rmcp wrote.
#[derive(serde::Deserialize)]
struct Parts<'a> {
    method: &'a str,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// The revision that the result of `initialize` names.
fn negotiated_version(record: &Mutex<Record>) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Named {
        #[serde(rename = "protocolVersion")]
        version: String,
    }
    let record = record.lock().unwrap_or_else(PoisonError::into_inner);
    let named: Named = serde_json::from_str(record.result.as_deref()?).ok()?;
    Some(named.version)
}

/// Carries one request of rmcp's and gives it the typed view of the answer.
async fn ask(
    connection: &Connection,
    request: &str,
    id: &rmcp::model::RequestId,
    era: Era,
    record: &Mutex<Record>,
) -> Result<ServerJsonRpcMessage, Failure> {
    let parts: Parts<'_> =
        serde_json::from_str(request).map_err(|_| Failure::protocol("a handshake message cannot be read"))?;
    let params = parts.params.map_or("{}", RawValue::get).to_owned();
    let version = (era == Era::Modern).then_some(MODERN_VERSION);
    let reply = connection
        .request(Request {
            method: parts.method,
            params,
            name: None,
            mirrored: &[],
            era,
            version: version.as_ref().map(ProtocolVersion::as_str),
            answer_bytes: HANDSHAKE_BYTES,
        })
        .await?;
    match reply {
        Ok(result) => {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
                serde_json::to_string(id).unwrap_or_default()
            );
            record.lock().unwrap_or_else(PoisonError::into_inner).result = Some(result);
            serde_json::from_str(&text)
                .map_err(|_| Failure::protocol("the upstream answered the handshake with something else"))
        }
        Err(error) => {
            let data = error
                .data
                .and_then(|data| serde_json::from_str::<serde_json::Value>(&data).ok());
            let code = ErrorCode(i32::try_from(error.code).unwrap_or(-32603));
            let error = rmcp::model::ErrorData::new(code, error.message, data);
            Ok(ServerJsonRpcMessage::error(error, Some(id.clone())))
        }
    }
}
