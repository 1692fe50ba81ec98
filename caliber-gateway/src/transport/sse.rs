//! The HTTP+SSE transport of MCP 2024-11-05: one event stream for everything that arrives, a POST for each message.
//!
//! The stream is not opened again when it ends: the session is over then, and the next call opens another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::Outgoing;
use super::event_stream::EventReader;
use super::streamable_http::{HttpTarget, verdict};
use crate::error::Failure;
use crate::inbox::{Inbox, Reply};
use crate::raw;

/// Answers to requests of the upstream that are sent at once. More are dropped.
const SIDE_ANSWERS: usize = 8;
/// Cancellations that are sent at once. More are dropped.
const CANCELLATIONS: usize = 256;
/// The longest that such a message may take.
const SIDE_MESSAGE_TIME: Duration = Duration::from_secs(5);
/// The largest body that is read of the answer to a POST, in bytes.
const ACKNOWLEDGEMENT_BYTES: usize = 64 << 10;

/// One upstream and its stream.
#[derive(Debug)]
pub(crate) struct Sse {
    wire: Arc<Wire>,
    reading: Mutex<Option<AbortOnDropHandle<()>>>,
}

#[derive(Debug)]
struct Wire {
    client: reqwest::Client,
    endpoint: url::Url,
    headers: HeaderMap,
    has_credentials: bool,
    inbox: Arc<Inbox>,
    answers: Arc<Semaphore>,
    cancellations: Arc<Semaphore>,
}

impl Sse {
    /// Opens the stream and waits for the address that messages go to.
    pub(crate) async fn connect(
        target: HttpTarget,
        inbox: Arc<Inbox>,
        event_bytes: usize,
    ) -> Result<Self, Failure> {
        let HttpTarget {
            client,
            url,
            mut headers,
            stream_bytes: _,
        } = target;
        let has_credentials = !headers.is_empty();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let mut response = client
            .get(url.clone())
            .headers(headers.clone())
            .header(header::ACCEPT, "text/event-stream")
            .send()
            .await
            .map_err(|error| verdict::of_error(&error).not_sent())?;
        verdict::check_encoding(&response)?;
        if response.status() != StatusCode::OK {
            let refused = verdict::of_refusal(&mut response, 0, false, has_credentials).await;
            return Err(match refused {
                Err(failure) => failure.not_sent(),
                Ok(_) => Failure::upstream("the upstream refused to open an event stream"),
            });
        }
        if verdict::content_type(&response).as_deref() != Some("text/event-stream") {
            return Err(Failure::protocol("the upstream answers without an event stream"));
        }
        let mut reader = EventReader::new(event_bytes, usize::MAX);
        let endpoint = loop {
            if let Some(event) = reader.pop() {
                if event.name == "endpoint" {
                    break message_address(&url, event.data.trim())?;
                }
                continue;
            }
            match response.chunk().await {
                Ok(Some(chunk)) => reader.push(&chunk)?,
                Ok(None) | Err(_) => {
                    return Err(Failure::connect(
                        "the event stream ended before it named an address",
                    ));
                }
            }
        };
        let wire = Arc::new(Wire {
            client,
            endpoint,
            headers,
            has_credentials,
            inbox,
            answers: Arc::new(Semaphore::new(SIDE_ANSWERS)),
            cancellations: Arc::new(Semaphore::new(CANCELLATIONS)),
        });
        let reading = tokio::spawn(Arc::clone(&wire).read(response, reader));
        Ok(Self {
            wire,
            reading: Mutex::new(Some(AbortOnDropHandle::new(reading))),
        })
    }

    pub(crate) async fn exchange(&self, outgoing: Outgoing<'_>) -> Result<Reply, Failure> {
        let wire = &self.wire;
        let mut pending = wire.inbox.register(outgoing.id)?;
        let mut cancel = CancelOnDrop {
            wire,
            id: outgoing.id,
            armed: outgoing.is_cancellable(),
        };
        // The answer may overtake the acknowledgement of the POST.
        let refused = async {
            match wire.post(outgoing.text, outgoing.id).await {
                Err(failure) => failure,
                Ok(()) => std::future::pending().await,
            }
        };
        let reply = tokio::select! {
            reply = pending.wait() => reply,
            failure = refused => Err(failure),
        };
        cancel.armed = false;
        reply
    }

    pub(crate) async fn notify(&self, text: String) -> Result<(), Failure> {
        self.wire.post(text, 0).await
    }

    /// Ends the stream.
    pub(crate) fn close(&self) {
        self.wire.inbox.close(Failure::lost("the session was closed"));
        self.reading.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The address for messages, which must be at the origin of the stream: credentials go there.
fn message_address(stream: &url::Url, named: &str) -> Result<url::Url, Failure> {
    let address = stream
        .join(named)
        .map_err(|_| Failure::protocol("the address that the upstream named for messages is malformed"))?;
    let bare = address.username().is_empty() && address.password().is_none();
    if address.origin() == stream.origin() && bare {
        Ok(address)
    } else {
        Err(Failure::protocol(
            "the upstream named an address for messages at another origin",
        ))
    }
}

struct CancelOnDrop<'a> {
    wire: &'a Arc<Wire>,
    id: u64,
    armed: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.wire
                .send_in_background(&self.wire.cancellations, raw::cancelled(self.id));
        }
    }
}

impl Wire {
    async fn post(&self, text: String, id: u64) -> Result<(), Failure> {
        let mut response = self
            .client
            .post(self.endpoint.clone())
            .headers(self.headers.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(text)
            .send()
            .await
            .map_err(|error| verdict::of_error(&error))?;
        if response.status().is_success() {
            // So that the connection can be used again; the answer itself comes on the stream.
            drop(verdict::read_body(&mut response, ACKNOWLEDGEMENT_BYTES).await);
            return Ok(());
        }
        match verdict::of_refusal(&mut response, id, true, self.has_credentials).await {
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::upstream("the upstream refused a message")),
        }
    }

    async fn read(self: Arc<Self>, mut response: reqwest::Response, mut reader: EventReader) {
        let failure = loop {
            while let Some(event) = reader.pop() {
                if event.name == "message"
                    && let Some(answer) = self.inbox.take(&event.data)
                {
                    self.send_in_background(&self.answers, answer);
                }
            }
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    if let Err(failure) = reader.push(&chunk) {
                        break failure.ending_session();
                    }
                }
                Ok(None) => break Failure::lost("the upstream ended the event stream"),
                Err(_) => break Failure::lost("the event stream broke off"),
            }
        };
        self.inbox.close(failure);
    }

    fn send_in_background(self: &Arc<Self>, places: &Arc<Semaphore>, text: String) {
        let (Ok(place), Ok(runtime)) = (
            Arc::clone(places).try_acquire_owned(),
            tokio::runtime::Handle::try_current(),
        ) else {
            self.inbox.count_dropped();
            return;
        };
        let wire = Arc::clone(self);
        runtime.spawn(async move {
            let sent = tokio::time::timeout(SIDE_MESSAGE_TIME, wire.post(text, 0)).await;
            if !matches!(sent, Ok(Ok(()))) {
                wire.inbox.count_dropped();
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_the_origin_of_the_stream_only() {
        let stream = url::Url::parse("https://example.com/base/sse").unwrap();
        for (named, address) in [
            ("/messages?s=1", "https://example.com/messages?s=1"),
            ("messages", "https://example.com/base/messages"),
            ("https://example.com/m", "https://example.com/m"),
        ] {
            assert_eq!(message_address(&stream, named).unwrap().as_str(), address);
        }
        for named in [
            "https://evil.example/m",
            "//evil.example/m",
            "http://example.com/m",
            "https://example.com:444/m",
            "https://user@example.com/m",
            "file:///etc/passwd",
            "http://[",
        ] {
            assert!(message_address(&stream, named).is_err(), "{named}");
        }
    }
}
