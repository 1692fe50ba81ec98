//! The threads that read the database, and the queue in front of them.
//!
//! SQLite blocks and recurses, so it runs on threads of its own: their number bounds the load, their stack is known,
//! and no thread of the asynchronous runtime ever waits for a disk. Each thread keeps its connection from call to call
//! and opens a new one when the file at the path is another one than before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::limits::Limits;
use super::outcome::{Failure, ToolError, ToolResult};
use super::reader::{Reader, Stop};
use crate::{Error, ErrorKind};

/// Stack of a reader before the part that depends on the longest SQL text. Untouched stack costs nothing; views of the
/// database that refer to each other in a long chain may use it.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// Stack per byte of SQL. SQLite recurses once per chained common table expression, which takes at least 20 bytes of
/// text, and was seen to need some 800 bytes of stack for it without optimisation; this is three times as much.
const STACK_PER_SQL_BYTE: usize = 128;
/// How long after the deadline the answer of a reader is still awaited before the call is given up without it.
const GRACE: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce(&mut Slot) + Send>;

/// A bounded set of reader threads. They end when this value is dropped and their current calls are done.
#[derive(Debug)]
pub(super) struct Readers {
    queue: Sender<Job>,
    /// One permit for each call that runs or waits; it bounds the queue.
    places: Arc<Semaphore>,
    timeout: Duration,
}

/// What one thread keeps between calls.
struct Slot {
    path: Arc<Path>,
    limits: Limits,
    open: Option<(FileIdentity, Reader)>,
}

impl Readers {
    /// Starts the threads. `path` must be absolute and without symbolic links.
    pub(super) fn start(path: PathBuf, limits: &Limits) -> Result<Self, Error> {
        let (queue, jobs) = channel();
        let places = Arc::new(Semaphore::new(limits.max_running + limits.max_waiting));
        let jobs = Arc::new(Mutex::new(jobs));
        let path: Arc<Path> = path.into();
        let stack = STACK_BYTES + STACK_PER_SQL_BYTE * limits.max_sql_bytes;
        for number in 0..limits.max_running {
            let jobs = Arc::clone(&jobs);
            let mut slot = Slot {
                path: Arc::clone(&path),
                limits: *limits,
                open: None,
            };
            std::thread::Builder::new()
                .name(format!("database-reader-{number}"))
                .stack_size(stack)
                .spawn(move || {
                    while let Some(job) = next_job(&jobs) {
                        // A panic would be a mistake of ours or of the binding; it costs one call, not a reader.
                        if catch_unwind(AssertUnwindSafe(|| job(&mut slot))).is_err() {
                            slot.open = None;
                        }
                    }
                })
                .map_err(|error| {
                    Error::new(ErrorKind::Internal, "a reader thread could not be started").because(error)
                })?;
        }
        Ok(Self {
            queue,
            places,
            timeout: limits.timeout,
        })
    }

    /// Runs `work` on a reader. It stops when `cancelled` fires, when this future is dropped, or at the deadline,
    /// whichever is first; the answer then does not wait for SQLite to notice.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        cancelled: &CancellationToken,
        work: impl FnOnce(&Reader) -> ToolResult<T> + Send + 'static,
    ) -> ToolResult<T> {
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| ToolError::busy())?;
        let deadline = Instant::now() + self.timeout;
        let stop = Arc::new(Stop::at(deadline));
        let _cancel_when_dropped = CancelWhenDropped(Arc::clone(&stop));
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |slot| {
            let result = slot.call(stop, work);
            drop(place);
            // The caller may be gone; nobody else wants the answer.
            let _ = reply.send(result);
        });
        self.queue.send(job).map_err(|_| ToolError::internal())?;
        tokio::select! {
            answer = answer => answer.unwrap_or_else(|_| Err(ToolError::internal())),
            () = cancelled.cancelled() => Err(ToolError::cancelled()),
            () = tokio::time::sleep_until((deadline + GRACE).into()) => Err(ToolError::timeout()),
        }
    }
}

/// The next job, or nothing once the queue is closed.
fn next_job(jobs: &Mutex<Receiver<Job>>) -> Option<Job> {
    // One idle thread waits in `recv` and holds the lock; the others wait for the lock.
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Stops the statement of a call whose caller is gone.
struct CancelWhenDropped(Arc<Stop>);

impl Drop for CancelWhenDropped {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Slot {
    fn call<T>(&mut self, stop: Arc<Stop>, work: impl FnOnce(&Reader) -> ToolResult<T>) -> ToolResult<T> {
        if let Some(reason) = stop.reached() {
            return Err(reason);
        }
        let reader = self.reader(stop)?;
        let result = work(reader);
        if matches!(&result, Err(error) if matches!(error.failure, Failure::Unavailable | Failure::Internal))
        {
            self.open = None;
        }
        result
    }

    /// The connection to the file that is at the path now.
    fn reader(&mut self, stop: Arc<Stop>) -> ToolResult<&Reader> {
        let identity = FileIdentity::of(&self.path)?;
        let usable = match self.open.take() {
            Some((known, mut reader)) if known == identity => {
                reader.start(Arc::clone(&stop)).ok().map(|()| (known, reader))
            }
            _ => None,
        };
        let opened = match usable {
            Some(opened) => opened,
            None => (
                identity,
                Reader::open(&self.path, &self.limits, stop).map_err(|error| {
                    tracing::warn!(%error, "the database cannot be opened");
                    super::outcome::from_sqlite(&error, None)
                })?,
            ),
        };
        Ok(&self.open.insert(opened).1)
    }
}

/// Which file a path leads to, to notice that it was replaced.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(path: &Path) -> ToolResult<Self> {
        use std::os::unix::fs::MetadataExt as _;

        let unavailable = |message: &str| Err(ToolError::new(Failure::Unavailable, message));
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_file() => Ok(Self {
                device: metadata.dev(),
                inode: metadata.ino(),
            }),
            Ok(_) => unavailable("the database path does not lead to a regular file any more"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                unavailable("the database file is gone")
            }
            Err(_) => unavailable("the database file cannot be read"),
        }
    }
}
