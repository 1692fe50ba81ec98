//! Opening sessions: for the pool, and for a look at a server. Together they have so much room.

use std::sync::Arc;
use std::time::Duration;

use caliber_core::ErrorKind;
use caliber_core::clock::Deadline;
use caliber_core::gateway::Target;
use caliber_core::inventory::Discovery;
use caliber_core::reason::ReasonCode;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::server::{Opened, Room, Server, SessionKey};
use super::{END_TIME, FINDINGS, Pool};
use crate::error::Failure;
use crate::session::Session;

/// A failed connection that took less is no burden: the upstream can be asked again at once.
const CHEAP_FAILURE: Duration = Duration::from_millis(250);

impl Pool {
    /// Opens a session in a task of its own: a caller that goes away, or has little time, costs the others nothing.
    pub(super) fn begin_opening(
        self: &Arc<Self>,
        server: &Arc<Server>,
        target: &Target,
        key: SessionKey,
    ) -> Result<watch::Receiver<Opened>, Failure> {
        let room = self.make_room()?;
        let (publish, opening) = watch::channel(None);
        let (opening, evicted) = server.begin_opening(&key, opening, room, &self.opener.settings)?;
        self.dismiss(evicted);
        let Some(number) = opening.number else {
            return Ok(opening.receiver);
        };
        let (pool, target) = (Arc::clone(self), target.clone());
        let under_way = Opening {
            server: Arc::clone(server),
            key,
            number,
            publish,
            ended: false,
        };
        self.background.spawn(async move {
            let started = Instant::now();
            let deadline = Deadline::after(pool.opener.settings.opening);
            let wake = Arc::clone(&pool.wake);
            let opened = pool.open(&target, wake, deadline);
            let opened = pool.until_shutdown(opened).await;
            let costly = started.elapsed() >= CHEAP_FAILURE || target.definition.endpoint.remote().is_none();
            let (opened, discovery) = match opened {
                Ok((session, discovery)) => (Ok(Arc::new(session)), Some(discovery)),
                Err(failure) => (Err(failure), None),
            };
            let unwanted = opened.as_ref().ok().cloned();
            let server = Arc::clone(&under_way.server);
            under_way.end(opened, costly, |outcome| match (outcome, discovery) {
                (Ok(session), Some(discovery)) => {
                    session.listen();
                    pool.publish(&server, discovery);
                }
                _ => pool.dismiss(unwanted),
            });
        });
        Ok(opening.receiver)
    }

    /// Opens a session. When there are too many processes, the one that rested longest makes room.
    async fn open(
        &self,
        target: &Target,
        wake: Arc<Notify>,
        deadline: Deadline,
    ) -> Result<(Session, Discovery), Failure> {
        let opened = self
            .opener
            .open(&target.definition, Arc::clone(&wake), deadline)
            .await;
        match opened {
            Err(failure)
                if (failure.kind, failure.reason) == (ErrorKind::Unavailable, ReasonCode::ServerBusy)
                    && target.definition.endpoint.remote().is_none() =>
            {
                let Some(resting) = self.evict_longest_resting(Session::is_process) else {
                    return Err(failure);
                };
                drop(tokio::time::timeout(END_TIME, resting.connection.transport.close()).await);
                self.opener.open(&target.definition, wake, deadline).await
            }
            opened => opened,
        }
    }

    /// Opens a session beside those of the pool, and ends it in the background; returns what it listed. It takes room
    /// like any other. It is an operator's look at the server: no breaker holds it off, and it is no call.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) async fn visit(&self, target: &Target, deadline: Deadline) -> Result<Discovery, Failure> {
        let _room = self.make_room()?;
        let opening = self.opener.open(&target.definition, Arc::default(), deadline);
        let (session, discovery) = self.until_shutdown(opening).await?;
        if let Some(server) = target.server.as_ref().and_then(|id| self.known(id)) {
            // It can be reached: calls need not wait any longer.
            server.succeeded();
        }
        self.dismiss([Arc::new(session)]);
        Ok(discovery)
    }

    /// Opens something, unless everything ends.
    async fn until_shutdown<T>(
        &self,
        opening: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Err(shutting_down()),
            opened = opening => opened,
        }
    }

    /// Takes the room for one more session, if need be that of the one that rested longest.
    fn make_room(&self) -> Result<Room, Failure> {
        if self.shutdown.is_cancelled() {
            return Err(shutting_down());
        }
        for _ in 0..FINDINGS {
            if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
                return Ok(room);
            }
            let Some(resting) = self.evict_longest_resting(|_| true) else {
                break;
            };
            self.dismiss([resting]);
        }
        let limit = self.opener.settings.sessions;
        Err(Failure::busy(
            ReasonCode::ServerBusy,
            format!("all {limit} sessions are at work"),
        ))
    }

    /// Takes out the session that rested longest among those that `counts`.
    fn evict_longest_resting(&self, counts: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        let servers: Vec<_> = self.servers().values().cloned().collect();
        let resting = servers
            .iter()
            .filter_map(|server| Some((server.longest_resting(&counts)?, server)));
        let (session, server) = resting.min_by_key(|(session, _)| session.idle_since())?;
        server.make_room(&session)
    }
}

fn shutting_down() -> Failure {
    Failure::busy(ReasonCode::ServerBusy, "the gateway is shutting down")
}

/// An opening under way. Dropped without an outcome it makes way for the next one.
struct Opening {
    server: Arc<Server>,
    key: SessionKey,
    number: u64,
    publish: watch::Sender<Opened>,
    ended: bool,
}

impl Opening {
    /// Enters the outcome; tells it to those who wait after `before` has been done.
    fn end(
        mut self,
        opened: Result<Arc<Session>, Failure>,
        costly: bool,
        before: impl FnOnce(&Result<Arc<Session>, Failure>),
    ) {
        self.ended = true;
        let outcome = self.server.end_opening(&self.key, self.number, opened, costly);
        before(&outcome);
        // Nobody may wait any more.
        self.publish.send_replace(Some(outcome));
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.ended {
            self.server.abandon_opening(&self.key, self.number);
        }
    }
}
