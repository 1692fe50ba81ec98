//! Streamable HTTP: each message is a POST, its answer one JSON text or an event stream.
//!
//! An answer is read in the task that asked for it, so a call needs no other task, and dropping it closes the
//! stream. Which answer of the upstream means what is in [`verdict`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caliber_core::reason::ReasonCode;
use futures::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::event_stream::EventReader;
use super::{Era, Outgoing};
use crate::error::Failure;
use crate::inbox::{Inbox, Reply};
use crate::raw::{self, Incoming};

mod listen;
pub(super) mod verdict;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The longest session id that is taken, in bytes.
const SESSION_ID_BYTES: usize = 1_024;
/// Answers to requests of the upstream that are sent at once. More are dropped.
const SIDE_ANSWERS: usize = 8;
/// Cancellations that are sent at once. More are dropped.
const CANCELLATIONS: usize = 256;
/// The longest that such a message may take.
const SIDE_MESSAGE_TIME: Duration = Duration::from_secs(5);
/// How long, and how many bytes, a stream is read on after its answer, so that its connection can be used again.
const DRAIN_TIME: Duration = Duration::from_millis(500);
const DRAIN_BYTES: usize = 64 << 10;
/// How often one answer is fetched again after its stream broke off.
const RESUMPTIONS: u32 = 5;
/// The pause before that, where the upstream names none, and the longest that it may name.
const RESUMPTION_PAUSE: Duration = Duration::from_secs(1);
const RESUMPTION_LONGEST: Duration = Duration::from_secs(30);

/// One upstream and our session there.
#[derive(Debug)]
pub(crate) struct StreamableHttp {
    wire: Arc<Wire>,
    listening: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// What the tasks of a connection share.
#[derive(Debug)]
struct Wire {
    client: reqwest::Client,
    url: url::Url,
    /// What every request carries: what we accept, and the credentials.
    headers: HeaderMap,
    /// Whether credentials are among the headers.
    has_credentials: bool,
    stream_bytes: usize,
    session: Mutex<Option<HeaderValue>>,
    inbox: Arc<Inbox>,
    answers: Arc<Semaphore>,
    cancellations: Arc<Semaphore>,
    closed: AtomicBool,
}

/// Where and how to send.
pub(crate) struct HttpTarget {
    /// A client whose addresses were checked.
    pub(crate) client: reqwest::Client,
    pub(crate) url: url::Url,
    /// The credentials.
    pub(crate) headers: HeaderMap,
    /// The most bytes of one event stream.
    pub(crate) stream_bytes: usize,
}

impl StreamableHttp {
    pub(crate) fn new(target: HttpTarget, inbox: Arc<Inbox>) -> Self {
        let HttpTarget {
            client,
            url,
            mut headers,
            stream_bytes,
        } = target;
        let has_credentials = !headers.is_empty();
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Self {
            wire: Arc::new(Wire {
                client,
                url,
                headers,
                has_credentials,
                stream_bytes,
                session: Mutex::new(None),
                inbox,
                answers: Arc::new(Semaphore::new(SIDE_ANSWERS)),
                cancellations: Arc::new(Semaphore::new(CANCELLATIONS)),
                closed: AtomicBool::new(false),
            }),
            listening: Mutex::new(None),
        }
    }

    pub(crate) async fn exchange(&self, outgoing: Outgoing<'_>) -> Result<Reply, Failure> {
        let wire = &self.wire;
        if let Some(failure) = wire.inbox.closed() {
            return Err(failure.not_sent());
        }
        let mut cancel = CancelOnDrop {
            wire,
            id: outgoing.id,
            version: outgoing.version,
            // In the modern family closing the stream is the cancellation.
            armed: outgoing.era == Era::Legacy && outgoing.is_cancellable(),
        };
        let reply = wire.ask(&outgoing).await;
        cancel.armed = false;
        reply
    }

    pub(crate) async fn notify(&self, text: String, version: Option<&str>) -> Result<(), Failure> {
        self.wire.post_side_message(text, version).await
    }

    /// Whether the upstream gave us a session.
    pub(crate) fn has_session(&self) -> bool {
        self.wire.session().is_some()
    }

    /// Opens the stream on which a legacy upstream tells of changes, in the background.
    pub(crate) fn listen(&self, version: String) {
        let task = tokio::spawn(listen::run(Arc::clone(&self.wire), version));
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        *listening = Some(AbortOnDropHandle::new(task));
    }

    /// Takes leave of the upstream.
    pub(crate) async fn close(&self) {
        let wire = &self.wire;
        wire.inbox.close(Failure::lost("the session was closed"));
        self.listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if wire.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(session) = wire.session() {
            let request = wire
                .client
                .delete(wire.url.clone())
                .headers(wire.headers.clone())
                .header(SESSION_ID, session);
            // The upstream may refuse, or be gone: nothing depends on it.
            drop(request.send().await);
        }
    }
}

/// Tells a legacy upstream that nobody waits any more.
struct CancelOnDrop<'a> {
    wire: &'a Arc<Wire>,
    id: u64,
    version: Option<&'a str>,
    armed: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            let version = self.version.map(str::to_owned);
            self.wire
                .send_in_background(&self.wire.cancellations, raw::cancelled(self.id), version);
        }
    }
}

impl Wire {
    fn session(&self) -> Option<HeaderValue> {
        self.session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn post(&self, text: String, version: Option<&str>) -> reqwest::RequestBuilder {
        let mut headers = self.headers.clone();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.add_protocol_headers(&mut headers, version);
        self.client.post(self.url.clone()).headers(headers).body(text)
    }

    fn add_protocol_headers(&self, headers: &mut HeaderMap, version: Option<&str>) {
        if let Some(session) = self.session() {
            headers.insert(SESSION_ID, session);
        }
        if let Some(version) = version.and_then(|version| HeaderValue::from_str(version).ok()) {
            headers.insert(PROTOCOL_VERSION, version);
        }
    }

    /// Sends a request and reads its answer.
    async fn ask(self: &Arc<Self>, outgoing: &Outgoing<'_>) -> Result<Reply, Failure> {
        let mut headers = HeaderMap::new();
        if outgoing.era == Era::Modern {
            if let Ok(method) = HeaderValue::from_str(outgoing.method) {
                headers.insert(METHOD, method);
            }
            if let Some(name) = outgoing.name.and_then(|name| HeaderValue::from_str(name).ok()) {
                headers.insert(NAME, name);
            }
            for (name, value) in outgoing.mirrored {
                headers.insert(name, value.clone());
            }
        }
        let request = self
            .post(outgoing.text.clone(), outgoing.version)
            .headers(headers);
        let had_session = self.session().is_some();
        let mut response = request.send().await.map_err(|error| verdict::of_error(&error))?;
        verdict::check_encoding(&response)?;
        let status = response.status();
        if !status.is_success() {
            return verdict::of_refusal(&mut response, outgoing.id, had_session, self.has_credentials).await;
        }
        if outgoing.method == "initialize" {
            self.adopt_session(&response)?;
        }
        match verdict::content_type(&response).as_deref() {
            Some("application/json") => {
                let body = verdict::read_body(&mut response, outgoing.answer_bytes).await?;
                self.read_answer(&body, outgoing.id)
            }
            Some("text/event-stream") => self.read_stream(response, outgoing).await,
            _ if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT => Err(
                Failure::protocol("the upstream accepted the request and promised no answer"),
            ),
            _ => Err(Failure::protocol(
                "the answer is neither JSON nor an event stream",
            )),
        }
    }

    /// The session id of the handshake. Every later request carries it.
    fn adopt_session(&self, response: &reqwest::Response) -> Result<(), Failure> {
        let Some(id) = response.headers().get(SESSION_ID) else {
            return Ok(());
        };
        let visible = |byte: &u8| (0x21..=0x7e).contains(byte);
        if id.is_empty() || id.len() > SESSION_ID_BYTES || !id.as_bytes().iter().all(visible) {
            return Err(Failure::protocol("the session id of the upstream is malformed"));
        }
        let mut id = id.clone();
        id.set_sensitive(true);
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
        Ok(())
    }

    fn read_answer(&self, body: &[u8], id: u64) -> Result<Reply, Failure> {
        let text = std::str::from_utf8(body)
            .map_err(|_| Failure::protocol("the answer of the upstream is not UTF-8"))?;
        match raw::parse(text) {
            Ok(Incoming::Answer {
                id: answered,
                outcome,
            }) if answered == Some(id) || (answered.is_none() && outcome.is_err()) => {
                Ok(outcome.map(str::to_owned))
            }
            Ok(_) => {
                self.inbox.count_dropped();
                Err(Failure::protocol("the upstream answered another request"))
            }
            Err(problem) => {
                self.inbox.count_dropped();
                Err(malformed(problem))
            }
        }
    }

    /// Reads events until the answer; fetches it again where a legacy upstream broke off and allows that.
    async fn read_stream(
        self: &Arc<Self>,
        mut response: reqwest::Response,
        outgoing: &Outgoing<'_>,
    ) -> Result<Reply, Failure> {
        let mut reader = EventReader::new(outgoing.answer_bytes, self.stream_bytes);
        let mut resumptions = 0;
        loop {
            let ended = match self
                .read_events(&mut response, &mut reader, outgoing.id, outgoing.version)
                .await
            {
                Ok(Some(reply)) => {
                    drain(response);
                    return Ok(reply);
                }
                Ok(None) => Failure::lost("the upstream ended the stream before the answer"),
                Err(failure) => failure,
            };
            let Some(last_id) = reader.last_id().filter(|_| {
                outgoing.era == Era::Legacy
                    && ended.fate == crate::error::Fate::Lost
                    && resumptions < RESUMPTIONS
            }) else {
                return Err(ended);
            };
            let Ok(last_id) = HeaderValue::from_str(last_id) else {
                return Err(ended);
            };
            resumptions += 1;
            tokio::time::sleep(reader.retry().unwrap_or(RESUMPTION_PAUSE).min(RESUMPTION_LONGEST)).await;
            response = match self.get(outgoing.version, Some(last_id)).await {
                Some(response) => response,
                None => return Err(ended),
            };
        }
    }

    /// Reads until the answer to `id`, or the end of the stream.
    async fn read_events(
        self: &Arc<Self>,
        response: &mut reqwest::Response,
        reader: &mut EventReader,
        id: u64,
        version: Option<&str>,
    ) -> Result<Option<Reply>, Failure> {
        loop {
            while let Some(event) = reader.pop() {
                if event.name != "message" || event.data.is_empty() {
                    continue;
                }
                match raw::parse(&event.data) {
                    Ok(Incoming::Answer {
                        id: answered,
                        outcome,
                    }) if answered == Some(id) || (answered.is_none() && outcome.is_err()) => {
                        return Ok(Some(outcome.map(str::to_owned)));
                    }
                    Err(problem) if raw::broken_answer_id(&event.data) == Some(id) => {
                        self.inbox.count_dropped();
                        return Err(malformed(problem));
                    }
                    _ => self.take(&event.data, version),
                }
            }
            match response.chunk().await {
                Ok(Some(chunk)) => reader.push(&chunk)?,
                Ok(None) => return Ok(None),
                Err(_) => return Err(Failure::lost("the connection broke off before the answer")),
            }
        }
    }

    /// A message that is not what was waited for.
    fn take(self: &Arc<Self>, text: &str, version: Option<&str>) {
        if let Some(answer) = self.inbox.take(text) {
            self.send_in_background(&self.answers, answer, version.map(str::to_owned));
        }
    }

    /// Opens an event stream; `None` when the upstream offers none.
    async fn get(&self, version: Option<&str>, last_id: Option<HeaderValue>) -> Option<reqwest::Response> {
        let mut headers = self.headers.clone();
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        self.add_protocol_headers(&mut headers, version);
        if let Some(last_id) = last_id {
            headers.insert(LAST_EVENT_ID, last_id);
        }
        let response = self
            .client
            .get(self.url.clone())
            .headers(headers)
            .send()
            .await
            .ok()?;
        let is_stream = response.status() == StatusCode::OK
            && verdict::content_type(&response).as_deref() == Some("text/event-stream")
            && verdict::check_encoding(&response).is_ok();
        is_stream.then_some(response)
    }

    async fn post_side_message(&self, text: String, version: Option<&str>) -> Result<(), Failure> {
        let sending = async {
            let mut response = self
                .post(text, version)
                .send()
                .await
                .map_err(|error| verdict::of_error(&error))?;
            let status = response.status();
            if status.is_success() {
                // So that the connection can be used again.
                drop(verdict::read_body(&mut response, DRAIN_BYTES).await);
                Ok(())
            } else {
                Err(Failure::upstream(format!(
                    "the upstream refused a notification (HTTP {})",
                    status.as_u16()
                )))
            }
        };
        match tokio::time::timeout(SIDE_MESSAGE_TIME, sending).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::timeout("sending a notification")),
        }
    }

    /// Sends a message that nobody waits for; drops it when too many are on their way.
    fn send_in_background(self: &Arc<Self>, places: &Arc<Semaphore>, text: String, version: Option<String>) {
        let (Ok(place), Ok(runtime)) = (
            Arc::clone(places).try_acquire_owned(),
            tokio::runtime::Handle::try_current(),
        ) else {
            self.inbox.count_dropped();
            return;
        };
        let wire = Arc::clone(self);
        runtime.spawn(async move {
            if wire.post_side_message(text, version.as_deref()).await.is_err() {
                wire.inbox.count_dropped();
            }
            drop(place);
        });
    }
}

/// Reads what is left of a stream whose answer has come, within bounds, so that the connection can be used again.
fn drain(mut response: reqwest::Response) {
    // Mostly the end is here already.
    match response.chunk().now_or_never() {
        Some(Ok(Some(_))) | None => {}
        Some(Ok(None) | Err(_)) => return,
    }
    tokio::spawn(tokio::time::timeout(DRAIN_TIME, async move {
        let mut left = DRAIN_BYTES;
        while let Ok(Some(chunk)) = response.chunk().await {
            match left.checked_sub(chunk.len()) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }));
}

fn malformed(problem: &str) -> Failure {
    Failure::protocol(format!("the answer of the upstream is malformed: {problem}"))
}

/// The limit of an answer, in words.
fn over_limit(limit: usize) -> Failure {
    Failure::too_large(
        ReasonCode::ResultTooLarge,
        format!("the answer of the upstream is larger than {limit} bytes"),
    )
}
