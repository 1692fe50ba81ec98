//! Tests of finding, checking and dialling endpoints.

mod addresses;
mod client;
mod executables;

use std::sync::atomic::{AtomicUsize, Ordering};

use caliber_core::server::{Auth, ServerLimits, Sharing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn stdio(command: &str, args: &[&str]) -> StdioEndpoint {
    StdioEndpoint {
        command: command.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: BTreeMap::new(),
    }
}

fn remote(url: &str) -> RemoteEndpoint {
    RemoteEndpoint {
        url: url.to_owned(),
        headers: BTreeMap::new(),
    }
}

fn definition(endpoint: Endpoint) -> ServerDefinition {
    ServerDefinition {
        name: "one".parse().unwrap(),
        description: String::new(),
        icon: String::new(),
        endpoint,
        auth: Auth::None,
        sharing: Sharing::PerCaller,
        limits: ServerLimits::default(),
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// Endpoints whose names have the addresses of `table`; a name with several lists gets one after the other.
fn with_names(settings: EndpointSettings, table: &[(&str, &[&[&str]])]) -> Endpoints {
    let table: Vec<(String, Vec<Vec<IpAddr>>, AtomicUsize)> = table
        .iter()
        .map(|(name, answers)| {
            let parse = |list: &&[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
            (
                (*name).to_owned(),
                answers.iter().map(parse).collect(),
                AtomicUsize::new(0),
            )
        })
        .collect();
    let resolver = Resolver::new(&settings, move |name| {
        let answer = table
            .iter()
            .find(|(known, _, _)| *known == name)
            .map(|(_, answers, asked)| {
                let turn = asked.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
                answers[turn].clone()
            });
        Box::pin(async move { answer.ok_or_else(|| std::io::Error::other("no such name")) })
    });
    Endpoints::with_resolver(settings, resolver)
}

/// A server on loopback that counts its connections and requests, keeps the last request, and gives one answer.
struct Sentinel {
    port: u16,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Sentinel {
    async fn start(answer: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sentinel = Self {
            port: listener.local_addr().unwrap().port(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (sentinel.connections.clone(), sentinel.requests.clone());
        let answer = answer.to_owned();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::Relaxed);
                let (requests, answer) = (requests.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while let Ok(byte) = stream.read_u8().await {
                        request.push(byte);
                        if request.ends_with(b"\r\n\r\n") {
                            let text = String::from_utf8(std::mem::take(&mut request)).unwrap();
                            requests.lock().unwrap().push(text);
                            stream.write_all(answer.as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        sentinel
    }

    fn hits(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Settings in which `host:port` may be dialled at loopback.
fn attested(host: &str, port: u16) -> EndpointSettings {
    let sidecar = format!("http://{host}:{port} 127.0.0.0/8");
    EndpointSettings {
        addresses: AddressRules {
            sidecars: vec![sidecar.parse().unwrap()],
            ..AddressRules::default()
        },
        ..EndpointSettings::default()
    }
}
