//! The one writer: commits that wait share a transaction and so a sync of the disk.
//!
//! Each commit stands in a savepoint of its own: one that is refused leaves its neighbours alone. Nobody is
//! answered before the transaction is on disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caliber_core::registry::Committed;
use tokio::sync::{mpsc, oneshot, watch};

use super::file::DatabaseFile;
use super::readers::execute;
use super::{Connection, Opened};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::StoreSettings;

/// One commit. It may be asked for more than once, when the transaction fails that it shares with others.
pub(crate) type Work = Box<dyn FnMut(&mut Connection) -> Result<Committed> + Send>;

/// How long emptying the log waits for readers, in milliseconds; the writer stands still meanwhile.
const LOG_PATIENCE: u32 = 100;
/// How many transactions pass before a log that could not be emptied is looked at again.
const LOG_RETRY: u32 = 256;

/// Hands commits to the writer's thread.
pub(crate) struct Writer {
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    wait: Duration,
    ended: watch::Receiver<bool>,
    counters: Arc<Counters>,
}

/// What the writer has done so far.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Transactions that were written.
    pub(crate) transactions: AtomicU64,
    /// Commits in them.
    pub(crate) commits: AtomicU64,
}

struct Job {
    work: Work,
    reply: oneshot::Sender<Result<Committed>>,
}

impl Writer {
    /// Starts the thread. It ends when the last [`Writer`] is dropped or closed, after everything that waits.
    pub(crate) fn start(
        connection: Connection,
        file: DatabaseFile,
        settings: &StoreSettings,
    ) -> Result<Self> {
        let (queue, jobs) = mpsc::channel(settings.queue.max(1));
        let (end, ended) = watch::channel(false);
        let counters = Arc::new(Counters::default());
        let thread = Thread {
            connection,
            file,
            batch: settings.batch.max(1),
            log_bytes: settings.wal_bytes,
            log_rest: 0,
            busy: settings.busy,
            counters: Arc::clone(&counters),
        };
        std::thread::Builder::new()
            .name("caliber-store-writer".to_owned())
            .spawn(move || {
                thread.run(jobs);
                // Nobody may be left who wants to know.
                let _ = end.send(true);
            })
            .map_err(|error| {
                Error::new(ErrorKind::Io, "the writer's thread could not be started").with_source(error)
            })?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            wait: settings.wait,
            ended,
            counters,
        })
    }

    /// Commits. A caller that goes away before the work is handed over has asked for nothing; after that the work
    /// is done all the same.
    pub(crate) async fn commit(&self, work: Work) -> Result<Committed> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let closed = || Error::new(ErrorKind::Closed, "the store is closed");
        let queue = queue.ok_or_else(closed)?;
        let place = tokio::time::timeout(self.wait, queue.reserve()).await;
        let place = place.map_err(|_| {
            Error::new(
                ErrorKind::Overloaded,
                format!(
                    "the queue of the store stayed full for {} ms; try again later",
                    self.wait.as_millis()
                ),
            )
        })?;
        let place = place.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        place.send(Job { work, reply });
        answer.await.map_err(|_| closed())?
    }

    /// Takes no more commits, and returns when those that wait are done and the connection is closed.
    pub(crate) async fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        // An error means that the thread is gone, which is what is waited for.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Whether commits are taken.
    pub(crate) fn is_open(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().is_some_and(|queue| !queue.is_closed())
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// What the writer's thread owns.
struct Thread {
    connection: Connection,
    file: DatabaseFile,
    batch: usize,
    log_bytes: u64,
    log_rest: u32,
    busy: Duration,
    counters: Arc<Counters>,
}

impl Thread {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(first) = jobs.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < self.batch
                && let Ok(job) = jobs.try_recv()
            {
                batch.push(job);
            }
            self.transact(batch);
            self.bound_log();
        }
    }

    /// Does all of it in one transaction. A commit that the disk stumbles over is taken out with its error, and
    /// the others are done again without it.
    fn transact(&mut self, mut batch: Vec<Job>) {
        while !batch.is_empty() {
            if let Err(error) = self.begin() {
                return answer_all(batch, &error);
            }
            let mut outcomes = Vec::with_capacity(batch.len());
            let mut struck = None;
            for (index, job) in batch.iter_mut().enumerate() {
                match self.attempt(&mut job.work) {
                    Attempt::Done(outcome) => outcomes.push(outcome),
                    Attempt::Struck(error) => {
                        struck = Some((index, error));
                        break;
                    }
                }
            }
            if let Some((index, error)) = struck {
                self.roll_back();
                answer(batch.remove(index), Err(error));
                continue;
            }
            let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            let statement = if done > 0 { "COMMIT" } else { "ROLLBACK" };
            if let Err(error) = execute(&mut self.connection, statement) {
                self.roll_back();
                return answer_all(batch, &error);
            }
            if done > 0 {
                let done = u64::try_from(done).unwrap_or(u64::MAX);
                self.counters.transactions.fetch_add(1, Ordering::Relaxed);
                self.counters.commits.fetch_add(done, Ordering::Relaxed);
            }
            for (job, outcome) in batch.into_iter().zip(outcomes) {
                answer(job, outcome);
            }
            return;
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.file.check()?;
        execute(&mut self.connection, "BEGIN IMMEDIATE")
    }

    /// One commit in its savepoint.
    fn attempt(&mut self, work: &mut Work) -> Attempt {
        if let Err(error) = execute(&mut self.connection, "SAVEPOINT one_commit") {
            return Attempt::Struck(error);
        }
        let connection = &mut self.connection;
        let outcome = catch_unwind(AssertUnwindSafe(|| work(connection))).unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Defect,
                "a commit panicked; nothing was changed",
            ))
        });
        let end = match &outcome {
            Ok(_) => "RELEASE one_commit",
            Err(error) if leaves_transaction(error.kind()) => "ROLLBACK TO one_commit; RELEASE one_commit",
            // SQLite may have rolled the whole transaction back by itself.
            Err(_) => return outcome.map_or_else(Attempt::Struck, |done| Attempt::Done(Ok(done))),
        };
        match execute(&mut self.connection, end) {
            Ok(()) => Attempt::Done(outcome),
            Err(error) => Attempt::Struck(error),
        }
    }

    fn roll_back(&mut self) {
        // It fails when SQLite has done it already.
        let _ = execute(&mut self.connection, "ROLLBACK");
    }

    /// Empties a log that readers have kept from being used again from its start.
    fn bound_log(&mut self) {
        if self.log_rest > 0 {
            self.log_rest -= 1;
            return;
        }
        if self.file.log_bytes() <= self.log_bytes {
            return;
        }
        let statement = format!(
            "PRAGMA busy_timeout = {LOG_PATIENCE}; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA busy_timeout = {};",
            self.busy.as_millis()
        );
        if let Err(error) = execute(&mut self.connection, &statement) {
            tracing::warn!(%error, "the write-ahead log could not be emptied; it is tried again");
        }
        if self.file.log_bytes() > self.log_bytes {
            self.log_rest = LOG_RETRY;
        }
    }
}

enum Attempt {
    /// The savepoint is closed, with or without a change.
    Done(Result<Committed>),
    /// The transaction cannot go on.
    Struck(Error),
}

/// Whether the transaction stands after an error of this kind.
fn leaves_transaction(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Refused | ErrorKind::Row | ErrorKind::Key | ErrorKind::Secret | ErrorKind::Defect
    )
}

fn answer(job: Job, outcome: Result<Committed>) {
    // The caller may have gone away.
    let _ = job.reply.send(outcome);
}

fn answer_all(batch: Vec<Job>, error: &Error) {
    for job in batch {
        answer(job, Err(error.again()));
    }
}

impl Opened {
    /// Starts the writer on its connection.
    pub(crate) fn start(self, settings: &StoreSettings) -> Result<(Writer, super::Readers, DatabaseFile)> {
        let writer = Writer::start(self.writer, self.file.clone(), settings)?;
        let readers = super::Readers::new(self.readers, settings.wait);
        Ok((writer, readers, self.file))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use caliber_core::registry::Revision;
    use tokio::task::JoinHandle;

    use super::*;

    /// A store whose only commit so far waits until it is let go.
    struct Held {
        writer: Arc<Writer>,
        go: std::sync::mpsc::Sender<()>,
        first: JoinHandle<Result<Committed>>,
        _folder: tempfile::TempDir,
    }

    async fn held() -> Held {
        let folder = tempfile::tempdir().unwrap();
        let settings = StoreSettings {
            path: folder.path().join("caliber.db"),
            ..StoreSettings::default()
        };
        let (writer, _readers, _file) = super::super::open(&settings).unwrap().start(&settings).unwrap();
        let writer = Arc::new(writer);
        let (go, wait) = std::sync::mpsc::channel();
        let (begun, has_begun) = oneshot::channel();
        let mut begun = Some(begun);
        let first = commit(&writer, move |_| {
            if let Some(begun) = begun.take() {
                begun.send(()).unwrap();
                wait.recv().unwrap();
            }
            Ok(Committed::default())
        });
        has_begun.await.unwrap();
        Held {
            writer,
            go,
            first,
            _folder: folder,
        }
    }

    fn commit(
        writer: &Arc<Writer>,
        work: impl FnMut(&mut Connection) -> Result<Committed> + Send + 'static,
    ) -> JoinHandle<Result<Committed>> {
        let writer = Arc::clone(writer);
        tokio::spawn(async move { writer.commit(Box::new(work)).await })
    }

    /// Waits until `count` commits wait in the queue.
    async fn waiting(writer: &Writer, count: usize) {
        let queue = writer.queue.lock().unwrap().clone().unwrap();
        tokio::time::timeout(Duration::from_secs(10), async {
            while queue.max_capacity() - queue.capacity() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_that_the_disk_fails_takes_no_neighbour_along() {
        let Held {
            writer,
            go,
            first,
            _folder,
        } = held().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let before = commit(&writer, move |conn| {
            counted.fetch_add(1, Ordering::SeqCst);
            execute(conn, "INSERT INTO revisions VALUES ('kept', 1)")?;
            Ok(Committed::default())
        });
        waiting(&writer, 1).await;
        let struck = commit(&writer, |conn| {
            execute(conn, "INSERT INTO revisions VALUES ('lost', 1)")?;
            Err(Error::new(ErrorKind::Io, "the disk is gone"))
        });
        let after = commit(&writer, |conn| {
            execute(conn, "INSERT INTO revisions VALUES ('kept too', 1)")?;
            Ok(Committed {
                revision: Revision(7),
                affected: 0,
            })
        });
        waiting(&writer, 3).await;
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        before.await.unwrap().unwrap();
        assert_eq!(struck.await.unwrap().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(after.await.unwrap().unwrap().revision, Revision(7));
        assert_eq!(runs.load(Ordering::SeqCst), 2, "the neighbour was not done again");
        // Each of them can be done once, so the failed transaction is gone as a whole, and the second one stands.
        for (name, there) in [("kept", true), ("lost", false), ("kept too", true)] {
            let statement = format!("INSERT INTO revisions VALUES ('{name}', 2)");
            let again = commit(&writer, move |conn| {
                execute(conn, &statement)?;
                Ok(Committed::default())
            });
            assert_eq!(again.await.unwrap().is_err(), there, "{name}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_that_panics_is_told_and_the_writer_goes_on() {
        let Held {
            writer,
            go,
            first,
            _folder,
        } = held().await;
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        let panicked = commit(&writer, |conn| {
            execute(conn, "INSERT INTO revisions VALUES ('half', 1)")?;
            panic!("on purpose")
        });
        assert_eq!(panicked.await.unwrap().unwrap_err().kind(), ErrorKind::Defect);
        let next = commit(&writer, |conn| {
            execute(conn, "INSERT INTO revisions VALUES ('half', 1)")?;
            Ok(Committed::default())
        });
        next.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn closing_finishes_what_waits() {
        let Held {
            writer,
            go,
            first,
            _folder,
        } = held().await;
        let waits = commit(&writer, |_| Ok(Committed::default()));
        waiting(&writer, 1).await;
        go.send(()).unwrap();
        writer.close().await;
        first.await.unwrap().unwrap();
        waits.await.unwrap().unwrap();
        let late = commit(&writer, |_| Ok(Committed::default()));
        assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
}
