//! A plain HTTP client for loopback.

use std::time::Duration;

use serde_json::Value;

/// An answer with everything that it holds.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The status code.
    pub(crate) status: u16,
    /// The headers.
    pub(crate) headers: reqwest::header::HeaderMap,
    /// The body.
    pub(crate) text: String,
}

impl Reply {
    /// The body as JSON; null when it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// A header; empty where there is none.
    pub(crate) fn header(&self, name: &str) -> String {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    }

    /// The `data` of a success; fails for anything else.
    pub(crate) fn data(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.json().get("data").cloned().unwrap_or_default()
    }

    /// The `reason_code` of a problem; empty where there is none.
    pub(crate) fn reason(&self) -> String {
        self.json()
            .get("reason_code")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }
}

/// A client without a proxy, without redirects, and without TLS.
#[derive(Clone, Debug)]
pub(crate) struct Client(reqwest::Client);

impl Client {
    pub(crate) fn new() -> Self {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls
            .expect("TLS versions")
            .with_root_certificates(rustls::RootCertStore::empty());
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.with_no_client_auth())
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(60));
        Self(client.build().expect("an HTTP client"))
    }

    pub(crate) async fn get(&self, url: &str) -> Reply {
        self.send(self.request("GET", url)).await
    }

    pub(crate) fn request(&self, method: &str, url: &str) -> reqwest::RequestBuilder {
        self.0.request(method.parse().expect("a method"), url)
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        let response = request.send().await.expect("the server on loopback answers");
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let text = response
            .text()
            .await
            .expect("the server on loopback ends its answer");
        Reply {
            status,
            headers,
            text,
        }
    }
}
