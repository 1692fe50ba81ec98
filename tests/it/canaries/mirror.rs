//! An upstream that repeats in its answers whatever it is sent, credentials and all.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How it answers; the path chooses.
const WAYS: [&str; 5] = ["unauthorized", "forbidden", "broken", "rpc-error", "no-json"];

/// Serves until the test ends. Each of [`urls`](Self::urls) answers in a way of its own.
#[derive(Debug)]
pub(super) struct Mirror {
    port: u16,
}

impl Mirror {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port on loopback");
        let port = listener.local_addr().expect("a listener has an address").port();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(answer(connection));
            }
        });
        Self { port }
    }

    /// The URLs, one for each way to fail.
    pub(super) fn urls(&self) -> Vec<String> {
        WAYS.iter()
            .map(|way| format!("http://127.0.0.1:{}/{way}", self.port))
            .collect()
    }
}

async fn answer(mut connection: TcpStream) -> Option<()> {
    let (head, body) = request(&mut connection).await?;
    let way = WAYS
        .iter()
        .find(|way| head.contains(&format!("/{way} ")))
        .copied()
        .unwrap_or_default();
    let seen = serde_json::Value::from(format!("{head}\n{body}")).to_string();
    let identifier = serde_json::from_str::<serde_json::Value>(&body)
        .map(|body| body["id"].clone())
        .unwrap_or_default();
    let (status, kind, text) = match way {
        "unauthorized" => ("401 Unauthorized", "text/plain", seen),
        "forbidden" => (
            "403 Forbidden",
            "application/json",
            format!("{{\"error\":{seen}}}"),
        ),
        "broken" => ("500 Internal Server Error", "text/html", seen),
        "rpc-error" => (
            "200 OK",
            "application/json",
            format!(
                r#"{{"jsonrpc":"2.0","id":{identifier},"error":{{"code":-32000,"message":{seen},"data":{seen}}}}}"#
            ),
        ),
        _ => ("200 OK", "application/json", seen),
    };
    let challenge = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("authorization:"))
        .unwrap_or_default();
    let length = text.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nX-Seen: {challenge}\r\n\
         WWW-Authenticate: Bearer realm=\"{challenge}\"\r\nConnection: close\r\n\r\n{text}"
    );
    connection.write_all(answer.as_bytes()).await.ok()?;
    connection.shutdown().await.ok()
}

/// The head and the body of one request, as far as they come in the size that tests send.
async fn request(connection: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let count = connection.read(&mut buffer).await.ok()?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
        if count == 0 || bytes.len() > 1 << 20 {
            return None;
        }
    }
}
