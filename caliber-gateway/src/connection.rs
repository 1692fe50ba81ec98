//! One connection to an upstream: requests out, answers in, all as text.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderName, HeaderValue};

use crate::error::Failure;
use crate::inbox::{Inbox, Reply};
use crate::raw;
use crate::redact::Redactor;
use crate::transport::{Era, Outgoing, Transport};

/// A connection. Ids are counted up and never used again.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) transport: Transport,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) redactor: Arc<Redactor>,
    next_id: AtomicU64,
}

/// A request before it has an id.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    /// The text of an object.
    pub(crate) params: String,
    pub(crate) name: Option<&'a str>,
    pub(crate) mirrored: &'a [(HeaderName, HeaderValue)],
    pub(crate) era: Era,
    pub(crate) version: Option<&'a str>,
    pub(crate) answer_bytes: usize,
}

impl Connection {
    pub(crate) fn new(transport: Transport, inbox: Arc<Inbox>, redactor: Arc<Redactor>) -> Self {
        Self {
            transport,
            inbox,
            redactor,
            next_id: AtomicU64::new(1),
        }
    }

    /// Sends a request and waits for its answer; dropped, it cancels the request at the upstream.
    ///
    /// # Errors
    ///
    /// A failure whose fate says whether the request was sent.
    pub(crate) async fn request(&self, request: Request<'_>) -> Result<Reply, Failure> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.transport
            .exchange(Outgoing {
                id,
                method: request.method,
                text: raw::request(id, request.method, &request.params),
                name: request.name,
                mirrored: request.mirrored,
                era: request.era,
                version: request.version,
                answer_bytes: request.answer_bytes,
            })
            .await
            .map_err(|failure| self.without_secrets(failure))
    }

    /// Sends a notification.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub(crate) async fn notify(
        &self,
        method: &str,
        params: &str,
        version: Option<&str>,
    ) -> Result<(), Failure> {
        self.transport
            .notify(raw::notification(method, params), version)
            .await
            .map_err(|failure| self.without_secrets(failure))
    }

    /// An upstream may repeat what it was given.
    fn without_secrets(&self, mut failure: Failure) -> Failure {
        failure.message = self.redactor.redact(&failure.message);
        failure
    }
}
