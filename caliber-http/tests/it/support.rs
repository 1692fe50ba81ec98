//! A running API, and a client so plain that it can send anything.

use std::net::SocketAddr;
use std::time::Duration;

use caliber_core::descriptor::ToolName;
use caliber_core::id::ProjectId;
use caliber_core::memory::{Parts, ScriptedServer, ScriptedTool};
use caliber_core::principal::{Principal, Scope, Scopes, Surface};
use caliber_core::server::ServerName;
use caliber_core::{Caliber, TokenRequest};
use caliber_http::HttpSettings;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Where the routes stand.
pub(crate) const PREFIX: &str = "/ajax-api/2.0/mlflow/caliber";
/// The longest that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The API on loopback, with the token of an admin of everything.
pub(crate) struct Service {
    pub(crate) parts: Parts,
    pub(crate) caliber: Caliber,
    pub(crate) address: SocketAddr,
    pub(crate) admin: String,
    pub(crate) cancel: CancellationToken,
    pub(crate) running: Option<JoinHandle<caliber_http::Result<()>>>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Service {
    pub(crate) async fn start() -> Self {
        Self::with(HttpSettings::default()).await
    }

    pub(crate) async fn with(settings: HttpSettings) -> Self {
        let parts = Parts::new();
        let caliber = parts.caliber();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let running = tokio::spawn(caliber_http::serve(
            listener,
            caliber.clone(),
            settings,
            cancel.clone(),
        ));
        let mut service = Self {
            parts,
            caliber,
            address,
            admin: String::new(),
            cancel,
            running: Some(running),
        };
        service.admin = service.token("ada", None, &[Scope::Admin]).await;
        service
    }

    /// A token for `subject`, in a project or everywhere.
    pub(crate) async fn token(&self, subject: &str, project: Option<&str>, scopes: &[Scope]) -> String {
        let request = TokenRequest {
            subject: subject.parse().unwrap(),
            project: project.map(|project| project.parse::<ProjectId>().unwrap()),
            scopes: scopes.iter().copied().collect::<Scopes>(),
            label: String::new(),
            expires_at: None,
        };
        let root = Principal::local_administrator();
        let made = self
            .caliber
            .create_token((&root, Surface::Library), request)
            .await
            .unwrap();
        made.text.expose().to_owned()
    }

    /// Starts an upstream with these tools under `name`.
    pub(crate) fn upstream(&self, name: &str, tools: impl IntoIterator<Item = ScriptedTool>) {
        let name: ServerName = name.parse().unwrap();
        self.parts.gateway.serve(&name, ScriptedServer::new(tools));
    }

    /// A registered and discovered server with the tool `echo`, classified as read; its identifier.
    pub(crate) async fn echo_server(&self, name: &str) -> String {
        self.upstream(name, [ScriptedTool::echo("echo").unwrap()]);
        let id = self.register(remote(name)).await;
        self.post(&format!("/mcp-servers/{id}/discover-tools"), json!({}))
            .await
            .expect(200);
        self.patch(&format!("/mcp-servers/{id}/tools/echo/policy"), read_policy())
            .await
            .expect(200);
        id
    }

    pub(crate) async fn register(&self, body: Value) -> String {
        let created = self.post("/mcp-servers", body).await.expect(201);
        created.data()["server_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, Some(&body.to_string())).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Answer {
        self.call("PATCH", path, Some(&body.to_string())).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, Some(&body.to_string())).await
    }

    /// A call of the API as its admin.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        self.call_as(&self.admin, method, path, body).await
    }

    /// A call of the API with another token.
    pub(crate) async fn call_as(&self, token: &str, method: &str, path: &str, body: Option<&str>) -> Answer {
        let mut request = Request::new(method, &format!("{PREFIX}{path}"));
        request.header("Authorization", &format!("Bearer {token}"));
        if let Some(body) = body {
            request.json(body);
        }
        self.send(&request).await
    }

    pub(crate) async fn send(&self, request: &Request) -> Answer {
        self.send_raw(&request.bytes()).await
    }

    /// Sends bytes and reads until the server closes.
    pub(crate) async fn send_raw(&self, bytes: &[u8]) -> Answer {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            // The server may have answered and closed before everything was sent.
            let _ = stream.write_all(bytes).await;
            read_answer(&mut stream).await
        };
        tokio::time::timeout(PATIENCE, exchange)
            .await
            .expect("an answer in time")
    }
}

/// Reads until the server closes.
pub(crate) async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut received = Vec::new();
    // A reset after the answer is no matter.
    let _ = stream.read_to_end(&mut received).await;
    Answer::parse(&received)
}

/// A request, as it goes over the wire.
pub(crate) struct Request {
    head: String,
    host: Option<String>,
    body: Vec<u8>,
    length: bool,
}

impl Request {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        Self {
            head: format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n"),
            host: Some("localhost".to_owned()),
            body: Vec::new(),
            length: false,
        }
    }

    pub(crate) fn host(&mut self, host: Option<&str>) -> &mut Self {
        self.host = host.map(str::to_owned);
        self
    }

    pub(crate) fn header(&mut self, name: &str, value: &str) -> &mut Self {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn token(&mut self, token: &str) -> &mut Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn json(&mut self, body: &str) -> &mut Self {
        self.header("Content-Type", "application/json")
            .body(body.as_bytes())
    }

    pub(crate) fn body(&mut self, body: &[u8]) -> &mut Self {
        self.body = body.to_vec();
        self.length = true;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = self.head.clone();
        if let Some(host) = &self.host {
            head.push_str(&format!("Host: {host}\r\n"));
        }
        if self.length {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// An answer, and all of its bytes.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) raw: Vec<u8>,
}

impl Answer {
    fn parse(raw: &[u8]) -> Self {
        let end = raw
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap_or_else(|| panic!("no whole head: {:?}", String::from_utf8_lossy(raw)));
        let head = String::from_utf8(raw[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                (name.trim().to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        Self {
            status,
            headers,
            body: raw[end + 4..].to_vec(),
            raw: raw.to_vec(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn data(&self) -> Value {
        self.json()["data"].clone()
    }

    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if status >= 400 {
            self.assert_problem();
        }
        self
    }

    /// Every refusal is a problem document that says the same in every place.
    fn assert_problem(&self) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        assert_eq!(problem["status_code"], self.status);
        for text in ["type", "title", "detail", "reason_code"] {
            assert!(
                problem[text].as_str().is_some_and(|text| !text.is_empty()),
                "{text}: {problem}"
            );
        }
        assert_eq!(self.header("cache-control"), Some("no-store"));
        assert_eq!(self.header("x-content-type-options"), Some("nosniff"));
        if self.status == 401 {
            assert!(
                self.header("www-authenticate")
                    .is_some_and(|challenge| challenge.starts_with("Bearer"))
            );
        }
        if self.status == 429 || self.status == 503 {
            assert!(self.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        }
    }

    pub(crate) fn reason(&self) -> String {
        self.json()["reason_code"].as_str().unwrap().to_owned()
    }

    /// Where the wrong fields are, as `body.args.2`.
    pub(crate) fn wrong_fields(&self) -> Vec<String> {
        let errors = self.json()["errors"].as_array().cloned().unwrap_or_default();
        errors
            .iter()
            .map(|error| {
                let steps = error["loc"].as_array().unwrap();
                steps
                    .iter()
                    .map(|step| step.as_str().unwrap())
                    .collect::<Vec<_>>()
                    .join(".")
            })
            .collect()
    }
}

/// A remote server.
pub(crate) fn remote(name: &str) -> Value {
    json!({ "name": name, "transport": "streamable-http", "uri": format!("http://127.0.0.1:9/{name}") })
}

/// An allowed read tool.
pub(crate) fn read_policy() -> Value {
    json!({ "allowed": true, "side_effect_level": "read", "requires_approval": false })
}

pub(crate) fn tool(name: &str) -> ToolName {
    name.parse().unwrap()
}
