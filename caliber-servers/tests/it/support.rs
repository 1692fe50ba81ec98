//! A sample database, the running command, and raw clients for it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long any answer may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A database in a folder of its own, as a file that may be written to beside the server.
pub(crate) struct Sample {
    pub(crate) folder: Arc<TempDir>,
    pub(crate) path: PathBuf,
}

impl Sample {
    pub(crate) fn new() -> Self {
        Self::with(
            "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT DEFAULT 'Bern');
             CREATE TABLE orders (
                 id INTEGER PRIMARY KEY,
                 customer_id INTEGER NOT NULL REFERENCES customers (id),
                 amount REAL,
                 doubled REAL AS (amount * 2)
             );
             CREATE VIEW customer_names AS SELECT name FROM customers;
             INSERT INTO customers (id, name) VALUES (1, 'Ada'), (2, 'Grace'), (3, 'Linus');
             INSERT INTO orders (customer_id, amount) VALUES (1, 9.5), (1, 1.0), (2, 3.25);",
        )
    }

    pub(crate) fn with(sql: &str) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let path = folder.path().join("sample.db");
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        Self { folder, path }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    pub(crate) fn stdio(&self, arguments: &[&str]) -> StdioServer {
        StdioServer::start(self, arguments)
    }

    pub(crate) fn http(&self, arguments: &[&str]) -> HttpServer {
        HttpServer::start(self, arguments)
    }
}

pub(crate) fn command(database: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caliber-mcp-db"));
    command
        .arg("relational")
        .arg("--database")
        .arg(database)
        .args(arguments);
    command
}

/// Something that answers JSON-RPC requests.
pub(crate) trait Client {
    /// Sends a request and returns the whole answer.
    fn request(&mut self, method: &str, params: Value) -> Value;

    fn result(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.request(method, params);
        assert!(answer.get("error").is_none(), "{method} failed: {answer}");
        answer["result"].take()
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// The structured content of a call that must succeed.
    fn call_ok(&mut self, tool: &str, arguments: Value) -> Value {
        let mut result = self.call(tool, arguments);
        assert_ne!(result["isError"], true, "{tool} failed: {result}");
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(
            text, result["structuredContent"],
            "the text content repeats the structured content"
        );
        result["structuredContent"].take()
    }

    /// The text of a call that must fail as a tool.
    fn call_error(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool} succeeded: {result}");
        assert!(result.get("structuredContent").is_none(), "{result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    fn query(&mut self, sql: &str) -> Value {
        self.call_ok("run_query", json!({"sql": sql}))
    }

    fn query_error(&mut self, sql: &str) -> String {
        self.call_error("run_query", json!({"sql": sql}))
    }
}

/// `_meta` of a request of the modern family.
pub(crate) fn modern_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

pub(crate) fn initialize_params() -> Value {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    })
}

/// The command on pipes.
pub(crate) struct StdioServer {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    modern: bool,
    /// Kept until the server has ended.
    _folder: Arc<TempDir>,
}

impl StdioServer {
    fn start(sample: &Sample, arguments: &[&str]) -> Self {
        let mut child = command(&sample.path, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            input,
            lines,
            next_id: 1,
            modern: false,
            _folder: Arc::clone(&sample.folder),
        }
    }

    /// Begins as a client of the legacy family.
    pub(crate) fn legacy(mut self) -> Self {
        let answer = self.result("initialize", initialize_params());
        assert_eq!(answer["protocolVersion"], "2025-11-25");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        self
    }

    /// Begins as a client of the modern family.
    pub(crate) fn modern(mut self) -> Self {
        self.modern = true;
        let answer = self.result("server/discover", json!({}));
        assert!(
            answer["supportedVersions"]
                .as_array()
                .unwrap()
                .contains(&json!("2026-07-28")),
            "{answer}"
        );
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{message}").unwrap();
        input.flush().unwrap();
    }

    /// Sends a request without waiting; returns its id.
    pub(crate) fn begin(&mut self, method: &str, mut params: Value) -> u64 {
        if self.modern {
            params["_meta"] = modern_meta();
        }
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// The next message, whatever it is.
    pub(crate) fn next_message(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("an answer in time");
        serde_json::from_str(&line).expect("nothing but JSON on standard output")
    }

    /// Ends the input and waits for the process.
    pub(crate) fn close(mut self) -> std::process::ExitStatus {
        drop(self.input.take());
        wait(&mut self.child)
    }
}

impl Client for StdioServer {
    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        loop {
            let message = self.next_message();
            if message["id"] == id {
                return message;
            }
        }
    }
}

impl Drop for StdioServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait(child: &mut Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The command on a port of its own choice.
pub(crate) struct HttpServer {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) headers: Vec<(String, String)>,
    next_id: u64,
    modern: bool,
    /// Kept until the server has ended.
    _folder: Arc<TempDir>,
}

impl HttpServer {
    fn start(sample: &Sample, arguments: &[&str]) -> Self {
        let mut child = command(&sample.path, &["--transport", "http", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .and_then(|rest| rest.strip_suffix("/mcp"))
            .unwrap_or_else(|| panic!("unexpected first line {line:?}"))
            .parse()
            .unwrap();
        Self {
            child,
            address,
            headers: Vec::new(),
            next_id: 1,
            modern: false,
            _folder: Arc::clone(&sample.folder),
        }
    }

    pub(crate) fn legacy(mut self) -> Self {
        let answer = self.result("initialize", initialize_params());
        assert_eq!(answer["protocolVersion"], "2025-11-25");
        self
    }

    pub(crate) fn modern(mut self) -> Self {
        self.modern = true;
        let answer = self.result("server/discover", json!({}));
        assert!(
            answer["supportedVersions"]
                .as_array()
                .unwrap()
                .contains(&json!("2026-07-28")),
            "{answer}"
        );
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        wait(&mut self.child)
    }

    /// Posts a body with the usual headers; `headers` come first and win over them.
    pub(crate) fn post(&self, body: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        let mut all: Vec<(String, String)> =
            headers.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        all.extend(self.headers.iter().cloned());
        for (name, value) in [
            ("Host", self.address.to_string()),
            ("Content-Type", "application/json".into()),
            ("Accept", "application/json, text/event-stream".into()),
        ] {
            if !all.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                all.push((name.into(), value));
            }
        }
        self.exchange("POST", body, &all)
    }

    pub(crate) fn exchange(&self, method: &str, body: &str, headers: &[(String, String)]) -> HttpAnswer {
        exchange(self.address, method, body, headers)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Client for HttpServer {
    fn request(&mut self, method: &str, mut params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        let mut headers = Vec::new();
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        if self.modern {
            params["_meta"] = modern_meta();
            headers.push(("MCP-Protocol-Version", "2026-07-28"));
            headers.push(("Mcp-Method", method));
            if !name.is_empty() {
                headers.push(("Mcp-Name", &name));
            }
        } else if method != "initialize" {
            headers.push(("MCP-Protocol-Version", "2025-11-25"));
        }
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let answer = self.post(&body, &headers);
        let message: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"));
        assert_eq!(message["id"], id, "{message}");
        message
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one request on a connection of its own.
pub(crate) fn exchange(
    address: SocketAddr,
    method: &str,
    body: &str,
    headers: &[(String, String)],
) -> HttpAnswer {
    let mut head = format!(
        "{method} /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may answer and hang up before it has read everything.
    let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
    HttpAnswer::read(stream)
}

#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A reset after the answer is the server's way of not reading the rest of a body that it refused.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }
}

/// Sends SIGTERM to a process of this test.
pub(crate) fn terminate(pid: u32) {
    assert!(
        Command::new("kill")
            .arg(pid.to_string())
            .status()
            .unwrap()
            .success()
    );
}
