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
