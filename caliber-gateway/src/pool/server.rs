//! What the pool knows of one server.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use caliber_core::admission::SessionFact;
use caliber_core::descriptor::ToolName;
use caliber_core::digest::Fingerprint;
use caliber_core::gateway::{CallerKey, ServerHealth, Target};
use caliber_core::id::ServerId;
use caliber_core::reason::ReasonCode;
use caliber_core::server::{ServerDefinition, Sharing};
use lru::LruCache;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::breaker::Breaker;
use crate::error::Failure;
use crate::places::Places;
use crate::session::Session;
use crate::settings::GatewaySettings;

/// Callers whose lost state is remembered until they call again.
const LOST_STATES: usize = 1_024;

/// The room of one session among all that may be open.
pub(super) type Room = OwnedSemaphorePermit;

/// The outcome of an opening, once there is one.
pub(super) type Opened = Option<Result<Arc<Session>, Failure>>;

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) places: Places,
    pub(crate) calls: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sessions: HashMap<SessionKey, Entry>,
    /// What callers have to be told of their state.
    lost: LruCache<SessionKey, Loss>,
    /// The definition whose server was found to keep no sessions.
    stateless: Option<DefinitionKey>,
    breaker: Breaker,
    /// What sessions that have ended dropped.
    dropped: u64,
    /// The end of the standard error of the last process that ended.
    stderr_tail: Option<String>,
    openings: u64,
}

/// The end of a session that cost its caller state.
#[derive(Debug)]
struct Loss {
    why: &'static str,
    /// Whether the caller was told meanwhile, by a call that was on its way in the session when it ended.
    told: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Entry {
    Opening {
        number: u64,
        outcome: watch::Receiver<Opened>,
        room: Room,
    },
    Open {
        session: Arc<Session>,
        room: Room,
    },
}

/// Whose session it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    definition: DefinitionKey,
    /// `None` for a session that all callers share.
    caller: Option<CallerKey>,
}

/// What a session was opened with: the place, and what the credentials are called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DefinitionKey {
    place: Fingerprint,
    credentials: Box<str>,
}

/// What the pool has for a caller.
pub(super) enum Found {
    /// A session that can be used, with the call counted in.
    Session(Arc<Session>),
    /// A session that is being opened.
    Opening(watch::Receiver<Opened>),
    /// The caller's state is gone, and it has not been told; `ended` is what held it.
    Lost {
        failure: Failure,
        ended: Option<Arc<Session>>,
    },
    /// Nothing; `ended` is what stood in its place.
    Nothing {
        key: SessionKey,
        ended: Option<Arc<Session>>,
    },
}

/// An opening that was begun, or is under way already.
pub(super) struct BegunOpening {
    pub(super) receiver: watch::Receiver<Opened>,
    /// The number of the new opening; `None` when another caller began one in between.
    pub(super) number: Option<u64>,
}

impl DefinitionKey {
    fn of(definition: &ServerDefinition) -> Self {
        let mut credentials = String::new();
        for (field, value) in definition.config_values() {
            credentials.push_str(&field);
            credentials.push('=');
            if let Some(reference) = value.reference() {
                credentials.push_str(&reference.to_string());
            }
            credentials.push('\n');
        }
        Self {
            place: definition.fingerprint(),
            credentials: credentials.into(),
        }
    }
}

impl Server {
    pub(super) fn new(id: ServerId, settings: &GatewaySettings) -> Self {
        Self {
            id,
            places: Places::new(settings.concurrency, settings.queue),
            calls: AtomicU32::new(0),
            state: Mutex::new(State {
                sessions: HashMap::new(),
                // It takes memory for what is in it only, unlike a bounded one.
                lost: LruCache::unbounded(),
                stateless: None,
                breaker: Breaker::new(settings),
                dropped: 0,
                stderr_tail: None,
                openings: 0,
            }),
        }
    }

    /// What there is for a call of `caller`.
    pub(super) fn find(&self, target: &Target, caller: &CallerKey, settings: &GatewaySettings) -> Found {
        let mut state = self.state();
        let key = state.key(&target.definition, caller);
        let ended = match state.sessions.get(&key) {
            Some(Entry::Opening { outcome, .. }) => return Found::Opening(outcome.clone()),
            Some(Entry::Open { session, .. }) if session.is_usable(settings) => {
                // Counted before the lock is given up: from here on it does not rest.
                session.calls.fetch_add(1, Ordering::AcqRel);
                self.calls.fetch_add(1, Ordering::Relaxed);
                return Found::Session(Arc::clone(session));
            }
            Some(Entry::Open { .. }) => state.end(&key, "it ended by itself"),
            None => None,
        };
        match state.lost.pop(&key) {
            Some(loss) if !loss.told.load(Ordering::Acquire) => Found::Lost {
                failure: Failure::session_restarted(loss.why),
                ended,
            },
            _ => Found::Nothing { key, ended },
        }
    }

    /// What the session of `caller` advertised last about `tool`. One that has to list again before the next call
    /// says nothing: what it advertised is out of date.
    pub(crate) fn fact(
        &self,
        target: &Target,
        caller: &CallerKey,
        tool: &ToolName,
        settings: &GatewaySettings,
    ) -> SessionFact {
        let state = self.state();
        let key = state.key(&target.definition, caller);
        match state.sessions.get(&key) {
            Some(Entry::Open { session, .. })
                if session.connection.inbox.closed().is_none()
                    && !session.must_list_before_call(settings) =>
            {
                session.fact(tool)
            }
            _ => SessionFact::NotOpen,
        }
    }

    /// Enters an opening, which takes `room`; returns what had to make way for it.
    pub(super) fn begin_opening(
        &self,
        key: &SessionKey,
        outcome: watch::Receiver<Opened>,
        room: Room,
        settings: &GatewaySettings,
    ) -> Result<(BegunOpening, Option<Arc<Session>>), Failure> {
        let mut state = self.state();
        match state.sessions.get(key) {
            Some(Entry::Opening { outcome, .. }) => {
                let begun = BegunOpening {
                    receiver: outcome.clone(),
                    number: None,
                };
                return Ok((begun, None));
            }
            Some(Entry::Open { session, .. }) => {
                let (_, receiver) = watch::channel(Some(Ok(Arc::clone(session))));
                return Ok((
                    BegunOpening {
                        receiver,
                        number: None,
                    },
                    None,
                ));
            }
            None => {}
        }
        if let Err(pause) = state.breaker.admit(Instant::now()) {
            let text = format!(
                "the server failed too often just now; it is tried again in {} ms",
                pause.as_millis().max(1)
            );
            return Err(Failure::busy(ReasonCode::BreakerOpen, text));
        }
        let evicted = if state.sessions.len() >= settings.sessions_per_server.max(1) {
            let Some((resting, _)) = state.longest_resting(|_| true) else {
                state.breaker.undecided();
                return Err(Failure::busy(
                    ReasonCode::ServerBusy,
                    format!("all {} sessions of the server are at work", state.sessions.len()),
                ));
            };
            state.end(&resting, "it made room for another")
        } else {
            None
        };
        state.openings += 1;
        let number = state.openings;
        let receiver = outcome.clone();
        let entry = Entry::Opening {
            number,
            outcome,
            room,
        };
        state.sessions.insert(key.clone(), entry);
        let begun = BegunOpening {
            receiver,
            number: Some(number),
        };
        Ok((begun, evicted))
    }

    /// Enters the outcome of an opening. A session that was evicted meanwhile is not handed out.
    pub(super) fn end_opening(
        &self,
        key: &SessionKey,
        number: u64,
        opened: Result<Arc<Session>, Failure>,
        costly: bool,
    ) -> Result<Arc<Session>, Failure> {
        let mut state = self.state();
        match &opened {
            // A server that opens and then dies at every call is not healthy yet: a call must be answered first.
            Ok(_) => state.breaker.undecided(),
            Err(failure) if failure.is_connection_failure() && costly => {
                state.breaker.failure(Instant::now(), jitter());
            }
            Err(_) => state.breaker.undecided(),
        }
        let Some(room) = state.take_opening(key, number) else {
            return opened.and(Err(Failure::connect("the server was changed or removed")));
        };
        let session = opened?;
        if session.is_stateless() {
            state.stateless = Some(key.definition.clone());
        } else if state.stateless.as_ref() == Some(&key.definition) {
            state.stateless = None;
        }
        let key = if session.is_stateless() {
            SessionKey {
                definition: key.definition.clone(),
                caller: None,
            }
        } else {
            key.clone()
        };
        let entry = Entry::Open {
            session: Arc::clone(&session),
            room,
        };
        state.sessions.insert(key, entry);
        Ok(session)
    }

    /// An opening ended without an outcome: its task panicked, or the runtime ended under it.
    pub(super) fn abandon_opening(&self, key: &SessionKey, number: u64) {
        let mut state = self.state();
        state.breaker.undecided();
        drop(state.take_opening(key, number));
    }

    /// A call was answered.
    pub(crate) fn succeeded(&self) {
        self.state().breaker.success();
    }

    /// A call ended its session. One that never answered a call counts like a failed connection.
    pub(super) fn session_failed(&self, session: &Session) {
        if session.is_process() && !session.has_answered() {
            self.state().breaker.failure(Instant::now(), jitter());
        }
    }

    /// Takes a session out, if it is still in.
    pub(super) fn remove(&self, session: &Arc<Session>) -> Option<Arc<Session>> {
        let mut state = self.state();
        let key = state.key_of(session)?;
        state.end(&key, "it ended by itself")
    }

    /// Takes out what has ended or rested too long.
    pub(super) fn evict_ended_and_idle(
        &self,
        now: tokio::time::Instant,
        settings: &GatewaySettings,
    ) -> Vec<Arc<Session>> {
        let mut state = self.state();
        let mut ended = Vec::new();
        for (key, session) in state.open() {
            if !session.is_usable(settings) {
                ended.extend(state.end(&key, "it ended by itself"));
            } else if session.is_resting() && now >= session.idle_since() + settings.idle {
                ended.extend(state.end(&key, "it rested too long"));
            }
        }
        ended
    }

    /// Takes everything out. The server is another from here on, so no caller's state is missed.
    pub(super) fn evict_all(&self) -> Vec<Arc<Session>> {
        let mut state = self.state();
        let keys: Vec<_> = state.sessions.keys().cloned().collect();
        let ended = keys.iter().filter_map(|key| state.end(key, "")).collect();
        state.lost.clear();
        state.breaker.success();
        ended
    }

    /// The session that rested longest among those that `counts`.
    pub(super) fn longest_resting(&self, counts: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        self.state().longest_resting(counts).map(|(_, session)| session)
    }

    /// Takes a session out for another, unless it has been taken to work meanwhile.
    pub(super) fn make_room(&self, session: &Arc<Session>) -> Option<Arc<Session>> {
        let mut state = self.state();
        let key = state.key_of(session)?;
        // Whoever takes it to work does so under the same lock.
        if session.is_resting() {
            state.end(&key, "it made room for another")
        } else {
            None
        }
    }

    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        let state = self.state();
        state.open().into_iter().map(|(_, session)| session).collect()
    }

    /// Whether forgetting it would lose nothing.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        state.sessions.is_empty() && state.lost.is_empty() && self.places.are_free()
    }

    /// How the sessions do.
    pub(crate) fn health(&self) -> ServerHealth {
        let state = self.state();
        let open = state.open();
        let dropped: u64 = open
            .iter()
            .map(|(_, session)| session.connection.inbox.dropped())
            .sum();
        let tail = open
            .iter()
            .find_map(|(_, session)| session.connection.transport.stderr_tail());
        ServerHealth {
            sessions: u32::try_from(open.len()).unwrap_or(u32::MAX),
            calls: self.calls.load(Ordering::Relaxed),
            breaker_open: state.breaker.is_open(Instant::now()),
            stderr_tail: tail.or_else(|| state.stderr_tail.clone()),
            dropped_messages: state.dropped.saturating_add(dropped),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn key(&self, definition: &ServerDefinition, caller: &CallerKey) -> SessionKey {
        let shared = definition.sharing == Sharing::Shared;
        let definition = DefinitionKey::of(definition);
        let shared = shared || self.stateless.as_ref() == Some(&definition);
        SessionKey {
            definition,
            caller: (!shared).then(|| caller.clone()),
        }
    }

    fn open(&self) -> Vec<(SessionKey, Arc<Session>)> {
        let open = self.sessions.iter().filter_map(|(key, entry)| match entry {
            Entry::Open { session, .. } => Some((key.clone(), Arc::clone(session))),
            Entry::Opening { .. } => None,
        });
        open.collect()
    }

    fn longest_resting(&self, counts: impl Fn(&Session) -> bool) -> Option<(SessionKey, Arc<Session>)> {
        self.open()
            .into_iter()
            .filter(|(_, session)| session.is_resting() && counts(session))
            .min_by_key(|(_, session)| session.idle_since())
    }

    fn key_of(&self, session: &Arc<Session>) -> Option<SessionKey> {
        self.sessions.iter().find_map(|(key, entry)| match entry {
            Entry::Open { session: open, .. } if Arc::ptr_eq(open, session) => Some(key.clone()),
            _ => None,
        })
    }

    /// Takes an opening out, if it is still in; returns its room.
    fn take_opening(&mut self, key: &SessionKey, number: u64) -> Option<Room> {
        match self.sessions.get(key) {
            Some(Entry::Opening { number: current, .. }) if *current == number => {}
            _ => return None,
        }
        match self.sessions.remove(key) {
            Some(Entry::Opening { room, .. }) => Some(room),
            _ => None,
        }
    }

    /// Takes a session out and remembers what its caller has to be told.
    fn end(&mut self, key: &SessionKey, why: &'static str) -> Option<Arc<Session>> {
        let Some(Entry::Open { session, room }) = self.sessions.remove(key) else {
            return None;
        };
        drop(room);
        if key.caller.is_some() && session.ends_state() {
            let told = session.told();
            self.lost.put(key.clone(), Loss { why, told });
            if self.lost.len() > LOST_STATES {
                self.lost.pop_lru();
            }
        }
        self.dropped = self.dropped.saturating_add(session.connection.inbox.dropped());
        if let Some(tail) = session.connection.transport.stderr_tail() {
            self.stderr_tail = Some(tail);
        }
        Some(session)
    }
}

/// A number between 0 and 1, to spread attempts.
fn jitter() -> f64 {
    let random = RandomState::new().hash_one(0_u8) >> 32;
    random as f64 / f64::from(u32::MAX)
}
