//! The open sessions of all servers: who may use which, how many there are, and when they are renewed.
//!
//! A session belongs to a server, the definition it was opened with, and its caller, unless the operator lets all
//! callers share one or the server keeps no sessions at all. What ends a session and costs a caller its state is
//! told to that caller once, instead of a call on a state that is not there.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use caliber_core::admission::SessionFact;
use caliber_core::clock::Deadline;
use caliber_core::descriptor::Descriptor;
use caliber_core::gateway::{CallerKey, Listing, Target};
use caliber_core::id::ServerId;
use caliber_core::inventory::Discovery;
use caliber_core::reason::ReasonCode;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::Failure;
use crate::opening::Opener;
use crate::session::Session;

mod listings;
mod openings;
mod server;

use server::Found;
pub(crate) use server::Server;

/// Servers that are kept in mind though nothing of them is open.
const REMEMBERED_SERVERS: usize = 4_096;
/// How often a session is looked for that somebody else may take away in between.
const FINDINGS: usize = 4;
/// How long calls under way may go on in a session that is to end.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// The longest that the end of a session may take, in the background.
const END_TIME: Duration = Duration::from_secs(30);
/// How long maintenance sleeps at least, and when nothing is due.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const MAINTENANCE_PAUSE: Duration = Duration::from_secs(60);

/// The sessions.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) opener: Opener,
    servers: Mutex<HashMap<ServerId, Arc<Server>>>,
    /// The room for sessions: in the pool, being opened, and of visits.
    room: Arc<Semaphore>,
    listings: listings::Listings,
    /// Told when a session's list of tools changed, and when a session ended.
    wake: Arc<Notify>,
    /// What goes on beside the calls: sessions that open, list again, or end.
    background: TaskTracker,
    shutdown: CancellationToken,
}

/// The use of a session for one call.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) session: Arc<Session>,
    server: Arc<Server>,
    pool: Arc<Pool>,
    sent: bool,
    ended: bool,
}

impl Pool {
    pub(crate) fn new(opener: Opener) -> Self {
        let room = opener.settings.sessions.min(Semaphore::MAX_PERMITS);
        Self {
            opener,
            servers: Mutex::default(),
            room: Arc::new(Semaphore::new(room)),
            listings: listings::Listings::default(),
            wake: Arc::default(),
            background: TaskTracker::new(),
            shutdown: CancellationToken::new(),
        }
    }

    /// What is known of a server; begins with nothing.
    pub(crate) fn server(&self, id: &ServerId) -> Arc<Server> {
        let mut servers = self.servers();
        if let Some(server) = servers.get(id) {
            return Arc::clone(server);
        }
        if servers.len() >= REMEMBERED_SERVERS {
            // Callers may name servers that do not exist: nothing of these stays.
            servers.retain(|_, server| Arc::strong_count(server) > 1 || !server.is_empty());
        }
        let server = Arc::new(Server::new(id.clone(), &self.opener.settings));
        servers.insert(id.clone(), Arc::clone(&server));
        server
    }

    /// What is known of a server, if anything is.
    pub(crate) fn known(&self, id: &ServerId) -> Option<Arc<Server>> {
        self.servers().get(id).cloned()
    }

    /// The session for a call of `caller`, opened if need be. Any number of callers open it once.
    ///
    /// # Errors
    ///
    /// Why there is none; nothing was sent.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        server: &Arc<Server>,
        target: &Target,
        caller: &CallerKey,
        deadline: Deadline,
    ) -> Result<Lease, Failure> {
        for _ in 0..FINDINGS {
            let mut opening = match server.find(target, caller, &self.opener.settings) {
                Found::Session(session) => {
                    return Ok(Lease {
                        session,
                        server: Arc::clone(server),
                        pool: Arc::clone(self),
                        sent: false,
                        ended: false,
                    });
                }
                Found::Lost { failure, ended } => {
                    self.dismiss(ended);
                    return Err(failure);
                }
                Found::Opening(opening) => opening,
                Found::Nothing { key, ended } => {
                    self.dismiss(ended);
                    self.begin_opening(server, target, key)?
                }
            };
            let opened = opening.wait_for(Option::is_some);
            match tokio::time::timeout_at(deadline.instant(), opened).await {
                Ok(Ok(opened)) => {
                    // What opened is found at the next turn, unless something has taken it away already.
                    if let Some(Err(failure)) = &*opened {
                        return Err(failure.clone());
                    }
                }
                Ok(Err(_)) => return Err(Failure::connect("opening a session ended without an outcome")),
                Err(_) => return Err(Failure::timeout("opening a session")),
            }
        }
        Err(Failure::busy(
            ReasonCode::ServerBusy,
            "sessions are taken away as fast as they open",
        ))
    }

    /// Ends sessions in the background, once their calls have ended.
    pub(crate) fn dismiss(&self, sessions: impl IntoIterator<Item = Arc<Session>>) {
        for session in sessions {
            let Ok(runtime) = tokio::runtime::Handle::try_current() else {
                return;
            };
            let ending = async move {
                let drained = async {
                    while !session.is_resting() && session.connection.inbox.closed().is_none() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                drop(tokio::time::timeout(DRAIN_TIME, drained).await);
                drop(tokio::time::timeout(END_TIME, session.connection.transport.close()).await);
            };
            self.background.spawn_on(ending, &runtime);
        }
    }

    fn publish(&self, server: &Server, discovery: Discovery) {
        self.listings.push(Listing {
            server: server.id.clone(),
            discovery,
        });
    }

    /// Lists the tools of a session again, if it is time.
    async fn list_if_due(&self, server: &Server, session: &Session) -> Result<(), Failure> {
        if let Some(discovery) = session.list_if_due(&self.opener.settings).await? {
            self.publish(server, discovery);
        }
        Ok(())
    }

    /// Lists the tools of a session again, if a change was told that a call must not go past.
    pub(crate) async fn list_before_call(&self, server: &Server, session: &Session) -> Result<(), Failure> {
        if let Some(discovery) = session.list_before_call(&self.opener.settings).await? {
            self.publish(server, discovery);
        }
        Ok(())
    }

    /// Sees to it that open sessions list again whose tools are no longer those of a new discovery. A server that
    /// tells nobody of its changes would otherwise be out of step with what an admin decides on, until the next
    /// listing by the clock.
    pub(crate) fn notice(&self, id: &ServerId, discovery: &Discovery) {
        let Some(server) = self.known(id) else { return };
        for session in server.sessions() {
            let differs =
                |tool: &Descriptor| session.fact(tool.name()) != SessionFact::Advertised(tool.digest());
            if discovery.tools.iter().any(differs) {
                session.connection.inbox.note_tools_changed();
            }
        }
    }

    /// The next listing; does the maintenance of the sessions meanwhile. Cancel-safe.
    pub(crate) async fn next_listing(self: &Arc<Self>) -> Listing {
        loop {
            if let Some(listing) = self.listings.pop() {
                return listing;
            }
            let due = self.maintain();
            tokio::select! {
                () = self.listings.arrived() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(due) => {}
            }
        }
    }

    /// Ends what rested too long or has ended, and begins the listings that are due; returns when to look again.
    fn maintain(self: &Arc<Self>) -> Instant {
        let settings = &self.opener.settings;
        let now = Instant::now();
        let mut next = now + MAINTENANCE_PAUSE;
        let servers: Vec<_> = self.servers().values().cloned().collect();
        for server in servers {
            self.dismiss(server.evict_ended_and_idle(now, settings));
            for session in server.sessions() {
                let due = session.next_listing(settings, now);
                if session.is_resting() {
                    next = next.min((session.idle_since() + settings.idle).max(now + SHORTEST_PAUSE));
                }
                if due > now {
                    next = next.min(due);
                } else if let Some(listing) = session.begin_background_listing() {
                    let (pool, server) = (Arc::clone(self), Arc::clone(&server));
                    self.background.spawn(async move {
                        let session = Arc::clone(&listing.session);
                        let listed = pool.list_if_due(&server, &session);
                        let listed = tokio::time::timeout(pool.opener.settings.opening, listed).await;
                        if let Ok(Err(failure)) = listed {
                            tracing::warn!(server = %server.id, error = failure.message, "a listing failed");
                            if failure.ends_session {
                                pool.dismiss(server.remove(&session));
                            }
                        }
                        drop(listing);
                        pool.wake.notify_one();
                    });
                }
            }
        }
        next
    }

    /// Ends the sessions of a server.
    pub(crate) fn evict(&self, id: &ServerId) {
        if let Some(server) = self.known(id) {
            self.dismiss(server.evict_all());
        }
    }

    /// Ends everything until `deadline`.
    pub(crate) async fn close(&self, deadline: Deadline) {
        self.shutdown.cancel();
        let servers: Vec<_> = self.servers().drain().map(|(_, server)| server).collect();
        for server in servers {
            for session in server.evict_all() {
                // Calls under way have had their grace.
                session
                    .connection
                    .inbox
                    .close(Failure::lost("the gateway was shut down"));
                self.dismiss([session]);
            }
        }
        self.background.close();
        drop(tokio::time::timeout_at(deadline.instant(), self.background.wait()).await);
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<ServerId, Arc<Server>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// From here on the call may have reached the upstream.
    pub(crate) fn sending(&mut self) {
        self.sent = true;
    }

    /// The call ended before anything of it was sent.
    pub(crate) fn refused(&mut self, failure: &Failure) {
        if failure.ends_session {
            self.failed(failure);
        }
    }

    /// The call was answered.
    pub(crate) fn answered(&mut self) {
        self.ended = true;
        self.session.was_answered();
        self.server.succeeded();
    }

    /// The call failed.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        self.ended = true;
        if failure.ends_session {
            self.session.was_told();
            self.server.session_failed(&self.session);
            self.pool.dismiss(self.server.remove(&self.session));
        } else {
            self.session.gave_sign_of_life();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.session.touch();
        self.session.calls.fetch_sub(1, Ordering::AcqRel);
        self.server.calls.fetch_sub(1, Ordering::Relaxed);
        if self.sent
            && !self.ended
            && self.session.was_given_up(&self.pool.opener.settings)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let session = Arc::clone(&self.session);
            self.pool
                .background
                .spawn_on(async move { session.check_life().await }, &runtime);
        }
    }
}
