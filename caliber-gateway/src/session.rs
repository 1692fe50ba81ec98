//! A session: one connection after its handshake, with what the server advertised on it last.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use caliber_core::admission::SessionFact;
use caliber_core::descriptor::{Descriptor, ToolName};
use caliber_core::digest::{DescriptorDigest, Fingerprint};
use caliber_core::inventory::Discovery;
use caliber_core::json::JsonText;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::client::Introduction;
use crate::connection::{Connection, Request};
use crate::error::Failure;
use crate::inbox::Reply;
use crate::listing::{Listed, list_tools};
use crate::mirror::{self, Mirror};
use crate::ration::Ration;
use crate::settings::{ENVELOPE_BYTES, GatewaySettings};
use crate::transport::{Era, Transport};

/// The largest answer to a request for a sign of life, in bytes.
const SIGN_OF_LIFE_BYTES: usize = 256 << 10;
/// How often a subscription that broke off is opened again, and the first pause before that; it doubles.
const SUBSCRIPTIONS: u32 = 6;
const SUBSCRIPTION_PAUSE: Duration = Duration::from_secs(2);
/// How long a sign of life may take.
const SIGN_OF_LIFE_TIME: Duration = Duration::from_secs(2);

/// An open session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connection: Arc<Connection>,
    pub(crate) introduction: Introduction,
    fingerprint: Fingerprint,
    tools: RwLock<Arc<HashMap<ToolName, Advertised>>>,
    opened: Instant,
    /// Milliseconds since `opened`.
    last_used: AtomicU64,
    /// When the last listing began, and the last one that succeeded.
    last_asked: AtomicU64,
    last_listed: AtomicU64,
    /// Listings that changes may cause.
    ration: Mutex<Ration>,
    listing: tokio::sync::Mutex<()>,
    listing_in_background: AtomicBool,
    pub(crate) calls: AtomicU32,
    /// Whether a call was ever answered here: from then on the caller may have state.
    answered: AtomicBool,
    /// Whether a caller was told that the session ended. Shared with who remembers that it has to be told.
    told: Arc<AtomicBool>,
    /// Calls in a row that were given up.
    unanswered: AtomicU32,
    checking: AtomicBool,
    subscription: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// What is kept of a tool that the server advertised; the descriptor itself is handed over.
#[derive(Debug)]
struct Advertised {
    digest: DescriptorDigest,
    mirrors: Arc<[Mirror]>,
}

/// A listing of a session in the background.
#[derive(Debug)]
pub(crate) struct BackgroundListing {
    pub(crate) session: Arc<Session>,
}

impl Drop for BackgroundListing {
    fn drop(&mut self) {
        self.session.listing_in_background.store(false, Ordering::Release);
    }
}

impl Session {
    /// A session after its first listing, which is handed over.
    pub(crate) fn new(
        connection: Arc<Connection>,
        introduction: Introduction,
        fingerprint: Fingerprint,
        listed: Listed,
        list_interval: Duration,
    ) -> (Self, Discovery) {
        let session = Self {
            connection,
            introduction,
            fingerprint,
            tools: RwLock::default(),
            opened: Instant::now(),
            last_used: AtomicU64::new(0),
            last_asked: AtomicU64::new(0),
            last_listed: AtomicU64::new(0),
            ration: Mutex::new(Ration::new(list_interval)),
            listing: tokio::sync::Mutex::new(()),
            listing_in_background: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            answered: AtomicBool::new(false),
            told: Arc::default(),
            unanswered: AtomicU32::new(0),
            checking: AtomicBool::new(false),
            subscription: Mutex::new(None),
        };
        let discovery = session.take_over(listed, session.opened);
        (session, discovery)
    }

    /// Begins to listen for changes, if the server tells of them.
    pub(crate) fn listen(&self) {
        if !self.introduction.tells_changes {
            return;
        }
        match (&self.connection.transport, self.introduction.era) {
            (Transport::Http(http), Era::Legacy) => http.listen(self.introduction.version.clone()),
            (_, Era::Modern) => {
                let task = tokio::spawn(subscribe(Arc::clone(&self.connection), self.introduction.clone()));
                let mut subscription = self.subscription.lock().unwrap_or_else(PoisonError::into_inner);
                *subscription = Some(AbortOnDropHandle::new(task));
            }
            (_, Era::Legacy) => {}
        }
    }

    /// What was advertised last about `tool`.
    pub(crate) fn fact(&self, tool: &ToolName) -> SessionFact {
        match self.tools().get(tool) {
            Some(advertised) => SessionFact::Advertised(advertised.digest),
            None => SessionFact::Unlisted,
        }
    }

    /// Calls a tool. Dropping the future cancels the call at the upstream.
    pub(crate) async fn call(
        &self,
        tool: &ToolName,
        arguments: &JsonText,
        result_bytes: usize,
    ) -> Result<Reply, Failure> {
        let tools = self.tools();
        let mirrors = tools.get(tool).map(|advertised| &advertised.mirrors);
        let mirrored = mirror::headers(mirrors.map_or(&[], |mirrors| mirrors), arguments)
            .map_err(|problem| Failure::unmirrored(&problem))?;
        let meta = match &self.introduction.meta {
            Some(meta) => format!(r#","_meta":{meta}"#),
            None => String::new(),
        };
        // A tool name holds nothing that needs escaping; the arguments travel as they came.
        let params = format!(r#"{{"name":"{tool}","arguments":{}{meta}}}"#, arguments.as_str());
        self.connection
            .request(Request {
                method: "tools/call",
                params,
                name: Some(tool.as_str()),
                mirrored: &mirrored,
                era: self.introduction.era,
                version: Some(&self.introduction.version),
                answer_bytes: result_bytes.saturating_add(ENVELOPE_BYTES),
            })
            .await
    }

    /// Lists the tools again, if a listing is due; any number of callers cause one. Dropped or failed, it leaves
    /// what asked for it.
    pub(crate) async fn list_if_due(&self, settings: &GatewaySettings) -> Result<Option<Discovery>, Failure> {
        let _one_at_a_time = self.listing.lock().await;
        let now = Instant::now();
        if self.next_listing(settings, now) > now {
            return Ok(None);
        }
        self.list(settings).await.map(Some)
    }

    /// Lists the tools again, if a change was told that a call must not go past; waits until changes may cause a
    /// listing again. Otherwise like [`list_if_due`](Self::list_if_due).
    pub(crate) async fn list_before_call(
        &self,
        settings: &GatewaySettings,
    ) -> Result<Option<Discovery>, Failure> {
        if !self.must_list_before_call(settings) {
            return Ok(None);
        }
        let _one_at_a_time = self.listing.lock().await;
        if !self.must_list_before_call(settings) {
            return Ok(None);
        }
        let wait = self.ration().wait(Instant::now());
        tokio::time::sleep(wait).await;
        self.list(settings).await.map(Some)
    }

    async fn list(&self, settings: &GatewaySettings) -> Result<Discovery, Failure> {
        let began = Instant::now();
        let inbox = &self.connection.inbox;
        // A change that is told from here on asks for another listing. Those before are pending until this one has
        // succeeded: meanwhile calls wait for it.
        let seen = inbox.told_changes();
        if inbox.tools_changed().is_some() {
            self.ration().spend(began);
        }
        let age = self.age();
        self.last_asked.store(age, Ordering::Relaxed);
        let listed = list_tools(&self.connection, &self.introduction, settings).await?;
        let discovery = self.take_over(listed, began);
        self.last_listed.store(age, Ordering::Relaxed);
        inbox.changes_listed(seen);
        Ok(discovery)
    }

    /// Remembers what is advertised from here on.
    fn take_over(&self, listed: Listed, began: Instant) -> Discovery {
        let mirrored =
            self.introduction.era == Era::Modern && matches!(self.connection.transport, Transport::Http(_));
        let advertised = |tool: &Descriptor| {
            let mirrors = if mirrored {
                mirror::mirrors(tool.input_schema()).unwrap_or_default()
            } else {
                Vec::new()
            };
            let advertised = Advertised {
                digest: tool.digest(),
                mirrors: mirrors.into(),
            };
            (tool.name().clone(), advertised)
        };
        let tools = Arc::new(listed.tools.iter().map(advertised).collect());
        *self.tools.write().unwrap_or_else(PoisonError::into_inner) = tools;
        Discovery {
            listed_at: began.into_std(),
            fingerprint: self.fingerprint,
            protocol_version: self.introduction.version.clone(),
            server_info: self.introduction.server_info.clone(),
            instructions: self.introduction.instructions.clone(),
            tools: listed.tools,
            withheld: listed.withheld,
        }
    }

    /// When the tools are to be listed again, seen from `now`.
    pub(crate) fn next_listing(&self, settings: &GatewaySettings, now: Instant) -> Instant {
        match self.connection.inbox.tools_changed() {
            None => self.at(&self.last_asked) + settings.relist,
            Some(changed) => (changed + settings.list_debounce).max(now + self.ration().wait(now)),
        }
    }

    /// Whether a change was told that a call must not go past. Where a server tells of changes faster than they may
    /// cause listings, a listing of the last [`GatewaySettings::list_interval`] is fresh enough.
    pub(crate) fn must_list_before_call(&self, settings: &GatewaySettings) -> bool {
        self.connection.inbox.tools_changed().is_some()
            && (self.ration().wait(Instant::now()).is_zero()
                || self.at(&self.last_listed).elapsed() >= settings.list_interval)
    }

    fn ration(&self) -> MutexGuard<'_, Ration> {
        self.ration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, age: &AtomicU64) -> Instant {
        self.opened + Duration::from_millis(age.load(Ordering::Relaxed))
    }

    /// Whether calls can go over it.
    pub(crate) fn is_usable(&self, settings: &GatewaySettings) -> bool {
        let deaf = self.is_process() && self.connection.inbox.late() >= settings.late_answers;
        self.connection.inbox.closed().is_none() && !deaf
    }

    /// Whether ending it would cost a caller state without anybody having told it.
    pub(crate) fn ends_state(&self) -> bool {
        self.connection.transport.holds_state(self.introduction.era)
            && self.has_answered()
            && !self.told.load(Ordering::Acquire)
    }

    pub(crate) fn is_stateless(&self) -> bool {
        self.connection.transport.is_stateless(self.introduction.era)
    }

    pub(crate) fn idle_since(&self) -> Instant {
        self.at(&self.last_used)
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.calls.load(Ordering::Acquire) == 0
    }

    pub(crate) fn touch(&self) {
        self.last_used.store(self.age(), Ordering::Relaxed);
    }

    /// Whether it is a process of ours.
    pub(crate) fn is_process(&self) -> bool {
        matches!(self.connection.transport, Transport::Stdio(_))
    }

    /// Whether a call was ever answered in it.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Begins a listing in the background, which lasts until what is returned is dropped; one at a time.
    pub(crate) fn begin_background_listing(self: &Arc<Self>) -> Option<BackgroundListing> {
        let busy = self.listing_in_background.swap(true, Ordering::AcqRel);
        (!busy).then(|| BackgroundListing {
            session: Arc::clone(self),
        })
    }

    pub(crate) fn was_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
        self.gave_sign_of_life();
    }

    pub(crate) fn gave_sign_of_life(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// Whether a caller was told that the session ended, now and later.
    pub(crate) fn told(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.told)
    }

    pub(crate) fn was_told(&self) {
        self.told.store(true, Ordering::Release);
    }

    /// Notes a call that was given up; returns whether the session should be asked for a sign of life. HTTP requests
    /// stand alone, so only a process can be stuck as a whole.
    pub(crate) fn was_given_up(&self, settings: &GatewaySettings) -> bool {
        let unanswered = self.unanswered.fetch_add(1, Ordering::Relaxed) + 1;
        self.is_process()
            && unanswered >= settings.unanswered
            && self.connection.inbox.closed().is_none()
            && !self.checking.swap(true, Ordering::AcqRel)
    }

    /// Asks for a sign of life; ends the connection when there is none.
    pub(crate) async fn check_life(&self) {
        let (method, params) = match (&self.introduction.era, &self.introduction.meta) {
            (Era::Modern, Some(meta)) => ("server/discover", format!(r#"{{"_meta":{meta}}}"#)),
            _ => ("ping", "{}".to_owned()),
        };
        let sign = self.connection.request(Request {
            method,
            params,
            name: None,
            mirrored: &[],
            era: self.introduction.era,
            version: Some(&self.introduction.version),
            answer_bytes: SIGN_OF_LIFE_BYTES,
        });
        match tokio::time::timeout(SIGN_OF_LIFE_TIME, sign).await {
            Ok(Ok(_)) => self.gave_sign_of_life(),
            Ok(Err(_)) => {}
            Err(_) => self.connection.inbox.close(Failure::lost(
                "the server gave no sign of life after calls that it did not answer, and is replaced",
            )),
        }
        self.checking.store(false, Ordering::Release);
    }

    fn age(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn tools(&self) -> Arc<HashMap<ToolName, Advertised>> {
        Arc::clone(&self.tools.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Subscribes to changes of the tool list (MCP 2026-07-28). The answer comes when the subscription ends; a broken
/// stream is opened again, a few times. Without a subscription the re-list interval still holds.
async fn subscribe(connection: Arc<Connection>, introduction: Introduction) {
    let Some(meta) = &introduction.meta else {
        return;
    };
    for attempt in 0..SUBSCRIPTIONS {
        let subscribed = connection.request(Request {
            method: "subscriptions/listen",
            params: format!(r#"{{"notifications":{{"toolsListChanged":true}},"_meta":{meta}}}"#),
            name: None,
            mirrored: &[],
            era: introduction.era,
            version: Some(&introduction.version),
            answer_bytes: SIGN_OF_LIFE_BYTES,
        });
        if subscribed.await.is_ok() || connection.inbox.closed().is_some() {
            return;
        }
        tokio::time::sleep(SUBSCRIPTION_PAUSE * 2_u32.pow(attempt)).await;
    }
}
