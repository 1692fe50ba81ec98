//! A server that does no work: what is measured is the way to it.

use std::sync::Arc;

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
