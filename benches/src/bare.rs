//! The other side of the ratios: rmcp alone, used as it should be.

use rmcp::RoleClient;
use rmcp::model::{CallToolRequestParams, ClientConfig, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;

/// A session of rmcp.
pub type Session = RunningService<RoleClient, ClientConfig>;

/// The client side of the legacy handshake, with its version pinned.
pub fn client() -> ClientConfig {
    ClientConfig::default().with_protocol_version(ProtocolVersion::V_2025_11_25)
}

/// Opens a session over streamable HTTP with a client that keeps its connections.
pub async fn open(url: &str) -> anyhow::Result<Session> {
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    let transport = StreamableHttpClientTransport::with_client(http_client()?, config);
    Ok(client()
        .serve_with_lifecycle(transport, ClientLifecycleMode::Initialize)
        .await?)
}

/// A client that keeps its connections.
pub fn http_client() -> anyhow::Result<reqwest::Client> {
    Ok(reqwest::Client::builder()
        .tcp_nodelay(true)
        .no_proxy()
        .tls_backend_preconfigured(tls())
        .build()?)
}

fn tls() -> rustls::ClientConfig {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|error| unreachable!("ring has the default versions: {error}"))
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

/// One call of `tool` with `arguments`.
pub async fn call(session: &Session, tool: &str, arguments: &serde_json::Value) -> anyhow::Result<()> {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let result = session
        .call_tool(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments))
        .await?;
    anyhow::ensure!(result.is_error != Some(true), "the tool failed");
    Ok(())
}
