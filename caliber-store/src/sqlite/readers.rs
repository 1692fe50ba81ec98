//! The connections for reading. Each read has one to itself, on a thread that may block, and sees one moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Connection, run};
use crate::error::{Error, ErrorKind, Result};

/// A bounded set of connections.
pub(crate) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    places: Arc<Semaphore>,
    wait: Duration,
}

impl Readers {
    pub(crate) fn new(connections: Vec<Connection>, wait: Duration) -> Self {
        Self {
            places: Arc::new(Semaphore::new(connections.len())),
            idle: Arc::new(Mutex::new(connections)),
            wait,
        }
    }

    /// Reads in one hop. A caller that goes away lets the read end by itself.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = match tokio::time::timeout(self.wait, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(Error::new(ErrorKind::Closed, "the store is closed")),
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Overloaded,
                    format!(
                        "no connection for reading came free within {} ms; try again later",
                        self.wait.as_millis()
                    ),
                ));
            }
        };
        let connection = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut lease = Lease {
            connection,
            idle: Arc::clone(&self.idle),
            _place: place,
        };
        let read = tokio::task::spawn_blocking(move || match &mut lease.connection {
            Some(connection) => snapshot(connection, work),
            None => Err(Error::new(
                ErrorKind::Defect,
                "a connection for reading is missing",
            )),
        });
        read.await
            .map_err(|error| Error::new(ErrorKind::Defect, "a read failed").with_source(error))?
    }

    /// Refuses reads from now on and closes the connections that rest.
    pub(crate) fn close(&self) {
        self.places.close();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A connection that is in use; it goes back by being dropped.
struct Lease {
    connection: Option<Connection>,
    idle: Arc<Mutex<Vec<Connection>>>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            if std::thread::panicking() {
                // The snapshot may still be open; without one this fails, which is as good.
                let _ = execute(&mut connection, "ROLLBACK");
            }
            self.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
        }
    }
}

/// Reads several things at one moment.
fn snapshot<T>(connection: &mut Connection, work: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
    execute(connection, "BEGIN")?;
    let outcome = work(connection);
    let ended = execute(connection, "ROLLBACK");
    let value = outcome?;
    ended?;
    Ok(value)
}

/// Runs a statement that gives nothing back.
pub(super) fn execute(connection: &mut Connection, statement: &str) -> Result<()> {
    run(async { Ok(connection.batch_execute(statement).await?) })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use diesel::{Connection as _, SqliteConnection};
    use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;

    use super::*;
    use crate::sqlite::InPlace;

    fn one_reader() -> Arc<Readers> {
        let connection = SqliteConnection::establish(":memory:").unwrap();
        let connection = SyncConnectionWrapper::with_runtime(connection, InPlace);
        Arc::new(Readers::new(vec![connection], Duration::from_millis(50)))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_waits_too_long_for_a_connection_is_told() {
        let readers = one_reader();
        let (go, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let busy = Arc::clone(&readers);
        let first = tokio::spawn(async move {
            busy.read(move |_| {
                begun.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            })
            .await
        });
        has_begun.await.unwrap();
        let second = readers.read(|_| Ok(())).await.unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Overloaded);
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        readers.read(|_| Ok(())).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_caller_that_goes_away_gives_the_connection_back() {
        let readers = one_reader();
        let (go, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let busy = Arc::clone(&readers);
        let abandoned = tokio::spawn(async move {
            busy.read(move |_| {
                begun.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            })
            .await
        });
        has_begun.await.unwrap();
        abandoned.abort();
        go.send(()).unwrap();
        let waits = Readers {
            idle: Arc::clone(&readers.idle),
            places: Arc::clone(&readers.places),
            wait: Duration::from_secs(10),
        };
        waits.read(|_| Ok(())).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_read_that_panics_leaves_a_connection_that_works() {
        let readers = one_reader();
        let panicked = readers.read::<()>(|_| panic!("on purpose")).await;
        assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Defect);
        // A snapshot that was left open would refuse the next one.
        readers.read(|_| Ok(())).await.unwrap();
    }
}
