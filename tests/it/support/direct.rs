//! A fake HTTP server asked without caliber in between: what it says is what must arrive.

use caliber::core::json::{JsonLimits, JsonText};

use super::http::{Client, Reply};
use super::upstream::Upstream;

/// Far beyond what any test asks for.
const LIMITS: JsonLimits = JsonLimits {
    bytes: 256 << 20,
    depth: JsonLimits::DEPTH_CEILING,
};

/// One session of the legacy family with a fake server over streamable HTTP.
#[derive(Debug)]
pub(crate) struct Direct {
    client: Client,
    url: String,
    session: String,
}

impl Direct {
    /// Shakes hands.
    pub(crate) async fn open(upstream: &Upstream) -> Self {
        let mut direct = Self {
            client: Client::new(),
            url: upstream.url("/mcp"),
            session: String::new(),
        };
        let parameters = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"direct","version":"0"}}"#;
        let reply = direct.post(&message("initialize", parameters)).await;
        direct.session = reply.header("mcp-session-id");
        direct
            .post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
            .await;
        direct
    }

    /// The result of a call, byte for byte.
    pub(crate) async fn call(&self, tool: &str, arguments: &str) -> String {
        self.result(
            "tools/call",
            &format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#),
        )
        .await
        .as_str()
        .to_owned()
    }

    /// The descriptors of the first page of tools, byte for byte.
    pub(crate) async fn tools(&self) -> Vec<String> {
        let tools = self
            .result("tools/list", "{}")
            .await
            .member("tools")
            .expect("a list of tools");
        let tools: Vec<JsonText> = tools.read().expect("a list is an array");
        tools.iter().map(|tool| tool.as_str().to_owned()).collect()
    }

    async fn result(&self, method: &str, parameters: &str) -> JsonText {
        let reply = self.post(&message(method, parameters)).await;
        let answer = JsonText::parse(reply.text, LIMITS).expect("the fake server answers in JSON");
        answer
            .member("result")
            .expect("the fake server answers with a result")
    }

    async fn post(&self, body: &str) -> Reply {
        let mut request = self
            .client
            .request("POST", &self.url)
            .header("content-type", "application/json");
        request = request
            .header("accept", "application/json, text/event-stream")
            .body(body.to_owned());
        if !self.session.is_empty() {
            request = request
                .header("mcp-session-id", &self.session)
                .header("mcp-protocol-version", "2025-11-25");
        }
        self.client.send(request).await
    }
}

fn message(method: &str, parameters: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{parameters}}}"#)
}
