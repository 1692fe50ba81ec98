//! The operator API of a rig, served on loopback.

use caliber::core::TokenRequest;
use caliber::core::principal::{Principal, Scope, Scopes, Surface};
use caliber::http::{HttpSettings, PROJECT_HEADER};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::http::{Client, Reply};
use super::rig::Rig;
use super::waiting::SECOND;

/// The operator API of a rig, with a token. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Api {
    base: String,
    token: String,
    client: Client,
    caliber: caliber::Caliber,
    cancel: CancellationToken,
}

impl Api {
    pub(super) async fn serve(rig: &Rig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port on loopback");
        let address = listener.local_addr().expect("a listener has an address");
        let settings = HttpSettings {
            grace: SECOND,
            ..HttpSettings::default()
        };
        let base = format!("http://{address}{}", settings.prefix.as_str());
        let cancel = CancellationToken::new();
        tokio::spawn({
            let (caliber, cancel) = (rig.caliber.clone(), cancel.clone());
            async move {
                caliber::http::serve(listener, caliber, settings, cancel)
                    .await
                    .expect("the API is served")
            }
        });
        let token = token(&rig.caliber, &rig.admin, "operator", Scope::Admin).await;
        Self {
            base,
            token,
            client: Client::new(),
            caliber: rig.caliber.clone(),
            cancel,
        }
    }

    /// The same API for another subject, with a token of this scope.
    pub(crate) async fn as_subject(&self, admin: &Principal, subject: &str, scope: Scope) -> Self {
        let token = token(&self.caliber, admin, subject, scope).await;
        let (base, client) = (self.base.clone(), self.client.clone());
        // The server ends with the value that started it.
        Self {
            base,
            token,
            client,
            caliber: self.caliber.clone(),
            cancel: CancellationToken::new(),
        }
    }

    /// The token that it signs in with.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Asks for a path below the prefix, such as `/mcp-servers`.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, None).await
    }

    /// Posts a body, or nothing for null.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send("POST", path, Some(body)).await
    }

    /// Any request; a body that is null is none.
    pub(crate) async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let body = body.filter(|body| !body.is_null()).map(|body| body.to_string());
        self.send_text(method, path, body).await
    }

    /// Any request with a body as it is written.
    pub(crate) async fn send_text(&self, method: &str, path: &str, body: Option<String>) -> Reply {
        let mut request = self.client.request(method, &format!("{}{path}", self.base));
        request = request
            .header("authorization", format!("Bearer {}", self.token))
            .header(PROJECT_HEADER, "default");
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        self.client.send(request).await
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

async fn token(caliber: &caliber::Caliber, admin: &Principal, subject: &str, scope: Scope) -> String {
    let request = TokenRequest {
        subject: subject.parse().expect("a subject"),
        project: None,
        scopes: Scopes::NONE.with(scope),
        label: "tests".into(),
        expires_at: None,
    };
    let made = caliber
        .create_token((admin, Surface::Library), request)
        .await
        .expect("a token is made");
    made.text.expose().to_owned()
}
