//! A gateway over scripted servers.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::script::{CallEnd, LoggedCall, ScriptedCall, ScriptedServer, ScriptedTool};
use crate::admission::{Permit, SessionFact, Slot};
use crate::clock::Deadline;
use crate::descriptor::{Descriptor, ToolName};
use crate::error::{Error, ErrorKind, Result};
use crate::gateway::{Answer, CallerKey, CheckReport, Gateway, Listing, ServerHealth, Target};
use crate::id::ServerId;
use crate::inventory::Discovery;
use crate::readiness::EndpointFacts;
use crate::reason::ReasonCode;
use crate::server::{Endpoint, ServerName};

/// Concurrent calls of one server, where nothing else is said.
const CONCURRENCY: u32 = 64;

/// A [`Gateway`] over [`ScriptedServer`]s: nothing leaves the process. Cheap to clone; clones are one.
///
/// A server is found by the name in its definition. Sessions are kept per server, place and caller, and see the
/// tools as they were when the session was opened or the server announced a change.
#[derive(Clone, Debug)]
pub struct ScriptedGateway {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    listed: Notify,
    concurrency: u32,
}

#[derive(Debug, Default)]
struct State {
    servers: HashMap<ServerName, ScriptedServer>,
    sessions: HashMap<SessionKey, Session>,
    places: HashMap<ServerId, Arc<Places>>,
    listings: BTreeMap<ServerId, Discovery>,
    log: Vec<LoggedCall>,
    openings: u64,
}

/// The places of one server.
#[derive(Debug, Default)]
struct Places {
    taken: Mutex<u32>,
    freed: Notify,
}

/// A place that is taken until it is dropped.
struct Place(Arc<Places>);

impl Places {
    fn taken(&self) -> MutexGuard<'_, u32> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(self: Arc<Self>, concurrency: u32) -> Place {
        loop {
            {
                let mut taken = self.taken();
                if *taken < concurrency {
                    *taken += 1;
                    break;
                }
            }
            self.freed.notified().await;
        }
        Place(self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken() -= 1;
        self.0.freed.notify_one();
    }
}

type SessionKey = (ServerId, crate::digest::Fingerprint, CallerKey);

#[derive(Debug)]
struct Session {
    server: ServerName,
    advertised: Discovery,
    calls: u64,
}

impl ScriptedGateway {
    /// A gateway that reaches nothing yet.
    pub fn new() -> Self {
        Self::with_concurrency(CONCURRENCY)
    }

    /// A gateway whose servers take `concurrency` calls at once, each, where their definition says nothing.
    pub fn with_concurrency(concurrency: u32) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            listed: Notify::new(),
            concurrency,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Starts a server, or replaces it without a word to its open sessions.
    pub fn serve(&self, name: &ServerName, server: ScriptedServer) {
        self.state().servers.insert(name.clone(), server);
    }

    /// The server announces that its tools have changed: its open sessions list them again.
    pub fn announce(&self, name: &ServerName) {
        let mut state = self.state();
        let State {
            servers,
            sessions,
            listings,
            ..
        } = &mut *state;
        let Some(server) = servers.get(name) else {
            return;
        };
        for ((id, fingerprint, _), session) in sessions.iter_mut().filter(|(_, open)| open.server == *name) {
            session.advertised.tools = server.tools.iter().map(|tool| tool.descriptor.clone()).collect();
            session.advertised.withheld.clone_from(&server.withheld);
            session.advertised.fingerprint = *fingerprint;
            session.advertised.listed_at = std::time::Instant::now();
            listings.insert(id.clone(), session.advertised.clone());
        }
        drop(state);
        self.shared.listed.notify_one();
    }

    /// Ends every session, as a server that restarts does.
    pub fn end_sessions(&self) {
        self.state().sessions.clear();
    }

    /// The calls that reached a server, in their order.
    pub fn calls(&self) -> Vec<LoggedCall> {
        self.state().log.clone()
    }

    /// How many sessions were opened for calls.
    pub fn openings(&self) -> u64 {
        self.state().openings
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self, server: &ServerId) -> Arc<Places> {
        Arc::clone(self.state().places.entry(server.clone()).or_default())
    }

    /// Opens the session of the caller, unless it is open, and compares what it sees with what was admitted.
    fn open(&self, permit: &Permit) -> Result<(ScriptedTool, usize)> {
        let target = permit.target();
        let key = key(permit.server(), target, permit.caller());
        let mut state = self.state();
        let State {
            servers,
            sessions,
            listings,
            log,
            openings,
            ..
        } = &mut *state;
        let server = found(servers, target)?;
        if !sessions.contains_key(&key) {
            let advertised = server.discovery(target)?;
            listings.insert(permit.server().clone(), advertised.clone());
            let session = Session {
                server: target.definition.name.clone(),
                advertised,
                calls: 0,
            };
            sessions.insert(key.clone(), session);
            *openings += 1;
            self.shared.listed.notify_one();
        }
        let refused = |reason, text: String| Err(Error::new(ErrorKind::Denied, text).with_reason(reason));
        let Some(session) = sessions.get_mut(&key) else {
            return Err(Error::internal("a session was lost while it was opened"));
        };
        let advertised = session
            .advertised
            .tools
            .iter()
            .find(|tool| tool.name() == permit.tool());
        match advertised.map(Descriptor::digest) {
            None => {
                return refused(
                    ReasonCode::ToolUnknown,
                    format!("the server does not offer {} any more", permit.tool()),
                );
            }
            Some(digest) if digest != permit.descriptor_digest() => {
                return refused(
                    ReasonCode::Drifted,
                    format!("the tool {} is not what was classified", permit.tool()),
                );
            }
            Some(_) => {}
        }
        let Some(tool) = server
            .tools
            .iter()
            .find(|tool| tool.descriptor.name() == permit.tool())
        else {
            return Err(
                Error::new(ErrorKind::Upstream, "the server does not know the tool")
                    .with_reason(ReasonCode::UpstreamError),
            );
        };
        session.calls += 1;
        log.push(LoggedCall {
            server: permit.server().clone(),
            tool: permit.tool().clone(),
            call: ScriptedCall {
                arguments: permit.arguments().clone(),
                caller: permit.caller().clone(),
                invocation: permit.invocation().clone(),
                ordinal: session.calls,
            },
            end: None,
        });
        Ok((tool.clone(), log.len() - 1))
    }
}

impl Default for ScriptedGateway {
    fn default() -> Self {
        Self::new()
    }
}

fn key(server: &ServerId, target: &Target, caller: &CallerKey) -> SessionKey {
    (server.clone(), target.definition.fingerprint(), caller.clone())
}

fn found<'a>(
    servers: &'a HashMap<ServerName, ScriptedServer>,
    target: &Target,
) -> Result<&'a ScriptedServer> {
    servers.get(&target.definition.name).ok_or_else(|| {
        Error::new(ErrorKind::Upstream, "nothing runs there").with_reason(ReasonCode::ConnectFailed)
    })
}

/// Notes how a logged call ends, also when its future is dropped.
struct Ending<'a> {
    gateway: &'a ScriptedGateway,
    call: usize,
    end: CallEnd,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(logged) = self.gateway.state().log.get_mut(self.call) {
            logged.end = Some(self.end);
        }
    }
}

#[async_trait]
impl Gateway for ScriptedGateway {
    async fn reserve(&self, server: &ServerId, concurrency: Option<u32>, deadline: Deadline) -> Result<Slot> {
        let taking = self
            .places(server)
            .take(concurrency.unwrap_or(self.shared.concurrency));
        match tokio::time::timeout_at(deadline.instant(), taking).await {
            Ok(place) => Ok(Slot::new(place)),
            Err(_) => Err(
                Error::new(ErrorKind::Unavailable, "the server is busy; try again later")
                    .with_reason(ReasonCode::ServerBusy),
            ),
        }
    }

    async fn inspect(&self, target: &Target) -> EndpointFacts {
        match &target.definition.endpoint {
            Endpoint::Stdio(stdio) => EndpointFacts::Stdio {
                executable: Some(stdio.command.clone()),
                is_python: false,
                script: None,
            },
            _ => EndpointFacts::Remote {
                addresses: Some(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]),
            },
        }
    }

    fn session(&self, target: &Target, caller: &CallerKey, tool: &ToolName) -> SessionFact {
        let Some(server) = &target.server else {
            return SessionFact::NotOpen;
        };
        match self.state().sessions.get(&key(server, target, caller)) {
            None => SessionFact::NotOpen,
            Some(session) => {
                let mut tools = session.advertised.tools.iter();
                let advertised = tools.find(|advertised| advertised.name() == tool);
                advertised.map_or(SessionFact::Unlisted, |tool| {
                    SessionFact::Advertised(tool.digest())
                })
            }
        }
    }

    async fn check(&self, target: &Target, deadline: Deadline) -> Result<CheckReport> {
        let discovery = self.discover(target, deadline).await?;
        Ok(CheckReport {
            protocol_version: discovery.protocol_version,
            server_info: discovery.server_info,
            tools: discovery
                .tools
                .iter()
                .map(|tool| tool.name().to_string())
                .collect(),
            duration_us: 1,
        })
    }

    async fn discover(&self, target: &Target, _deadline: Deadline) -> Result<Discovery> {
        found(&self.state().servers, target)?.discovery(target)
    }

    async fn call(&self, permit: Permit) -> Result<Answer> {
        let (tool, logged) = self.open(&permit)?;
        let mut ending = Ending {
            gateway: self,
            call: logged,
            end: CallEnd::Cancelled,
        };
        let call = self.state().log.get(logged).map(|logged| logged.call.clone());
        let call = call.ok_or_else(|| Error::internal("a call was lost from the log"))?;
        let (deadline, limit) = (permit.deadline(), permit.result_bytes());
        let _place = permit.into_slot();
        let started = Instant::now();
        let work = async {
            tokio::time::sleep(tool.delay).await;
            (tool.handler)(call).await
        };
        let Ok(result) = tokio::time::timeout_at(deadline.instant(), work).await else {
            ending.end = CallEnd::TimedOut;
            return Err(
                Error::new(ErrorKind::Timeout, "the server did not answer by the deadline")
                    .with_reason(ReasonCode::Timeout)
                    .after_sending(),
            );
        };
        ending.end = CallEnd::Answered;
        let result = result.map_err(Error::after_sending)?;
        if result.as_str().len() > limit {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "the result has {} bytes; the limit is {limit}",
                    result.as_str().len()
                ),
            )
            .with_reason(ReasonCode::ResultTooLarge)
            .after_sending());
        }
        let is_error = result
            .member("isError")
            .is_some_and(|flag| flag.as_str() == "true");
        Ok(Answer {
            result,
            is_error,
            upstream_time: started.elapsed(),
        })
    }

    async fn next_listing(&self) -> Listing {
        loop {
            let listed = self.shared.listed.notified();
            if let Some((server, discovery)) = self.state().listings.pop_first() {
                return Listing { server, discovery };
            }
            listed.await;
        }
    }

    async fn evict(&self, server: &ServerId) {
        self.state().sessions.retain(|(open, _, _), _| open != server);
    }

    async fn close(&self, _deadline: Deadline) {
        self.state().sessions.clear();
    }

    fn health(&self, server: &ServerId) -> ServerHealth {
        let state = self.state();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let running = |logged: &&LoggedCall| logged.server == *server && logged.end.is_none();
        ServerHealth {
            sessions: count(
                state
                    .sessions
                    .keys()
                    .filter(|(open, _, _)| open == server)
                    .count(),
            ),
            calls: count(state.log.iter().filter(running).count()),
            ..ServerHealth::default()
        }
    }
}
