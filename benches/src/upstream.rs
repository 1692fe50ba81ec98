//! Servers to be called: one that does no work, so that what is measured is the way to it, and an official one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Answers every call with the same short text.
#[derive(Clone)]
pub struct Echo {
    tools: Arc<Vec<Tool>>,
}

impl Echo {
    /// A server of so many tools, named `echo-0` and on.
    pub fn new(tools: usize) -> Self {
        let schema = serde_json::json!({
            "type": "object",
            "properties": { "text": { "type": "string", "maxLength": 1000 } },
            "required": ["text"],
        });
        let schema = Arc::new(schema.as_object().cloned().unwrap_or_default());
        let tool = |number| {
            Tool::new(
                format!("echo-{number}"),
                "Answers with the same short text, whatever it is asked.",
                Arc::clone(&schema),
            )
        };
        Self {
            tools: Arc::new((0..tools).map(tool).collect()),
        }
    }

    /// Serves it on loopback, with sessions; returns its URL.
    pub async fn serve(self) -> anyhow::Result<String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/mcp", listener.local_addr()?);
        let config = StreamableHttpServerConfig::default();
        let service = StreamableHttpService::new(
            move || Ok(self.clone()),
            Arc::new(LocalSessionManager::default()),
            config,
        );
        let router = Router::new().route_service("/mcp", service);
        // Without this, a kept-alive client waits some 40 ms for a delayed acknowledgement.
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(url)
    }
}

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text("twenty bytes of text")]).into())
    }
}

/// The official `server-everything` over streamable HTTP, on loopback.
pub struct Everything {
    /// Where it listens.
    pub url: String,
    // Ended with the value.
    _process: tokio::process::Child,
}

impl Everything {
    /// Starts it, if it is installed.
    pub async fn start() -> anyhow::Result<Option<Self>> {
        let node = crate::process::peers().join("node");
        let script = node.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
        if !script.exists() {
            return Ok(None);
        }
        let mut process = tokio::process::Command::new("node")
            .env("PORT", "0")
            .arg("--import")
            .arg(node.join("loopback.mjs"))
            .arg(script)
            .arg("streamableHttp")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stderr = process.stderr.take().context("no standard error")?;
        let mut lines = BufReader::new(stderr).lines();
        let wait = Duration::from_secs(20);
        while let Some(line) = tokio::time::timeout(wait, lines.next_line()).await?? {
            if let Some((_, address)) = line.split_once("listening on ") {
                let url = format!("http://{}/mcp", address.trim());
                // Read on, or it blocks when the pipe is full.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(Some(Self {
                    url,
                    _process: process,
                }));
            }
        }
        anyhow::bail!("server-everything ended before it listened")
    }
}
