//! The server as rmcp sees it. Protocol types stay in this file.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::outcome::{Failure, ToolError, ToolResult};
use super::query::run_query;
use super::reader::Reader;
use super::schema::{ListTables, describe_table, list_tables};
use super::text::{one_line, shown};
use super::tools::{DESCRIBE_TABLE, LIST_TABLES, RUN_QUERY};
use super::{RelationalServer, blocking, descriptions, tools};

const INSTRUCTIONS: &str = "Reads one SQLite database and never changes it. Look at list_tables and describe_table \
     before run_query. Pass values in params instead of writing them into the SQL text.";

impl ServerHandler for RelationalServer {
    fn get_info(&self) -> ServerConfig {
        // `listChanged` is not offered: descriptions are read at each listing, and nobody watches the file.
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(
                "caliber-db-relational",
                env!("CARGO_PKG_VERSION"),
            ))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if request.is_some_and(|page| page.cursor.is_some()) {
            return Err(ErrorData::invalid_params(
                "this list has one page; send no cursor",
                None,
            ));
        }
        let listed = match self.inner.descriptions.clone() {
            None => self.inner.tools.clone(),
            Some(file) => {
                let descriptions = blocking(move || descriptions::load(&file))
                    .await
                    .map_err(|error| {
                        tracing::error!(%error, "the tools cannot be listed");
                        ErrorData::internal_error(error.to_string(), None)
                    })?;
                tools::described(&self.inner.tools, descriptions)
            }
        };
        // rmcp marks the list as stale at once and as private where the protocol asks for it, and that is right here.
        Ok(ListToolsResult::with_all_items(listed))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = serde_json::Value::Object(request.arguments.unwrap_or_default());
        let outcome = match request.name.as_ref() {
            LIST_TABLES => {
                self.run(arguments, &context, |reader, _: &ListTables| list_tables(reader))
                    .await
            }
            DESCRIBE_TABLE => self.run(arguments, &context, describe_table).await,
            RUN_QUERY => self.run(arguments, &context, run_query).await,
            unknown => {
                return Err(ErrorData::invalid_params(
                    format!("there is no tool {}", shown(unknown)),
                    None,
                ));
            }
        };
        let result = outcome.unwrap_or_else(|error| {
            tracing::debug!(%error, tool = %request.name, "tool call failed");
            // No structured content: clients check it against the output schema even here.
            CallToolResult::error(vec![ContentBlock::text(error.to_string())])
        });
        Ok(result.into())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.inner.tools.iter().find(|tool| tool.name == name).cloned()
    }
}

impl RelationalServer {
    /// Reads the arguments, runs `work` on a reader and writes the result as JSON.
    async fn run<Arguments, Output>(
        &self,
        arguments: serde_json::Value,
        context: &RequestContext<RoleServer>,
        work: impl FnOnce(&Reader, &Arguments) -> ToolResult<Output> + Send + 'static,
    ) -> ToolResult<CallToolResult>
    where
        Arguments: DeserializeOwned + Send + 'static,
        Output: Serialize,
    {
        let arguments: Arguments = serde_json::from_value(arguments)
            .map_err(|error| ToolError::new(Failure::InvalidArguments, one_line(&error.to_string())))?;
        self.inner
            .readers
            .run(&context.ct, move |reader| {
                let output = work(reader, &arguments)?;
                let output = serde_json::to_value(output).map_err(|error| {
                    tracing::error!(%error, "a result cannot be written as JSON");
                    ToolError::internal()
                })?;
                Ok(CallToolResult::structured(output))
            })
            .await
    }
}
