//! The store: what it is opened with, what operators do with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use caliber_core::audit::{AuditAction, AuditEntry};
use caliber_core::clock::{Clock, SystemClock};
use caliber_core::json::JsonText;
use caliber_core::principal::{Principal, Surface};
use caliber_core::registry::Committed;

use crate::error::{Error, ErrorKind, Result};
use crate::keys::{KeyRing, SealedSecret};
use crate::settings::StoreSettings;
use crate::sqlite::{self, queries, run};

/// Secrets that one transaction of a rotation puts under the new key.
const ROTATION: u32 = 256;

/// Everything durable, in one SQLite database. Cheap to clone; all clones are one.
///
/// It is the [`Registry`](caliber_core::registry::Registry), and the
/// [`SecretSource`](caliber_core::secret::SecretSource) of the secrets that it keeps. Several processes may open the
/// same file.
///
/// A commit that was acknowledged is on disk. One that failed as [`ErrorKind::Io`] while it was synced may still
/// turn up after the machine has failed too; every other refusal has changed nothing.
///
/// When the last clone is dropped, commits that wait are finished in the background; [`close`](Self::close) waits.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) writer: sqlite::Writer,
    pub(crate) readers: sqlite::Readers,
    pub(crate) file: sqlite::DatabaseFile,
    pub(crate) key_ring: Option<KeyRing>,
    settings: StoreSettings,
}

/// What a store has written since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Transactions, each with one sync of the disk.
    pub transactions: u64,
    /// Commits in them.
    pub commits: u64,
}

/// Asks one of the portable queries, of whichever backend there is. Arguments are moved into the read.
macro_rules! read {
    ($store:expr, $query:ident($($argument:expr),*)) => {
        $store
            .inner
            .readers
            .read(move |conn| crate::sqlite::run(crate::sqlite::queries::$query(conn, $($argument),*)))
            .await
    };
}
pub(crate) use read;

impl Store {
    /// Opens the database, makes it if it is absent, and brings its schema up to date.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Path`], [`ErrorKind::ReadOnly`], [`ErrorKind::Locked`], [`ErrorKind::Full`],
    /// [`ErrorKind::Corrupt`], [`ErrorKind::NotADatabase`], [`ErrorKind::NewerSchema`], [`ErrorKind::Io`]: each
    /// text says what to do.
    pub async fn open(settings: StoreSettings) -> Result<Self> {
        let open = move || {
            let (writer, readers, file) = sqlite::open(&settings)?.start(&settings)?;
            Ok(Inner {
                writer,
                readers,
                file,
                key_ring: settings.key_ring.clone(),
                settings,
            })
        };
        let store = Self {
            inner: Arc::new(blocking(open).await?),
        };
        for sealed in read!(store, keys_in_use())? {
            let known = store.inner.key_ring.as_ref();
            if !known.is_some_and(|ring| ring.ids().any(|id| *id == sealed.key)) {
                tracing::warn!(key = %sealed.key, "secrets are stored under a key that is not in the key ring");
            }
        }
        Ok(store)
    }

    /// Copies the database, as it is at one moment, into a new file at `path`, while everything goes on. The copy is
    /// checked, brought to the disk, and gets its name last. To restore it, open it.
    ///
    /// It holds secrets as they are stored: encrypted, useless without the key ring, which is not in it. Dropping the
    /// future lets the copy come to its end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Path`] when there is a file at `path` already or none can be made; [`ErrorKind::Full`],
    /// [`ErrorKind::Io`]; [`ErrorKind::Corrupt`] when the database or the copy is damaged.
    pub async fn backup(&self, path: &Path) -> Result<()> {
        let (inner, path): (_, PathBuf) = (Arc::clone(&self.inner), path.to_owned());
        blocking(move || sqlite::backup(&inner.file, &path, inner.settings.busy)).await
    }

    /// Puts every stored secret that lies under an older key under the current one, and returns how many. Each
    /// transaction moves at most 256 and leaves an entry in the audit trail; when one fails, those before it stand,
    /// and the next call goes on from there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Key`] without a key ring, or when a secret lies under a key that is not in it: then nothing more
    /// is moved. [`ErrorKind::Secret`] when one does not open. Otherwise as every commit.
    pub async fn rotate_secrets(&self, who: (&Principal, Surface)) -> Result<u64> {
        let ring = self.inner.key_ring.clone().ok_or_else(no_key)?;
        let ring = Arc::new(ring);
        let mut moved = 0;
        loop {
            let (ring, principal, surface) = (Arc::clone(&ring), who.0.clone(), who.1);
            let work = move |conn: &mut sqlite::Connection| {
                let stale = run(queries::stale_secrets(conn, ring.current(), i64::from(ROTATION)))?;
                if stale.is_empty() {
                    return Ok(Committed::default());
                }
                let resealed = stale
                    .iter()
                    .map(|sealed| ring.seal(&sealed.id, &sealed.owner, &ring.open(sealed)?))
                    .collect::<Result<Vec<_>>>()?;
                let entry = rotation_entry(&principal, surface, &stale, &ring)?;
                run(queries::store_secrets(conn, &resealed))?;
                run(queries::record_audit(conn, [&entry]))?;
                Ok(Committed {
                    affected: u64::try_from(resealed.len()).unwrap_or(u64::MAX),
                    ..Committed::default()
                })
            };
            let committed = self.inner.writer.commit(Box::new(work)).await?;
            moved += committed.affected;
            if committed.affected < u64::from(ROTATION) {
                return Ok(moved);
            }
        }
    }

    /// Says which deployments need a server, in place of what was said before. For tests: promotions of workflows
    /// will say it, in a change of their own.
    ///
    /// # Errors
    ///
    /// As every commit.
    #[cfg(feature = "testing")]
    pub async fn set_deployments(
        &self,
        server: &caliber_core::id::ServerId,
        references: &[caliber_core::registry::DeploymentReference],
    ) -> Result<()> {
        let (server, references) = (server.clone(), references.to_vec());
        let work = move |conn: &mut sqlite::Connection| {
            run(queries::set_deployments(conn, &server, &references))?;
            Ok(Committed::default())
        };
        self.inner.writer.commit(Box::new(work)).await.map(drop)
    }

    /// The same for a version of a code tool.
    ///
    /// # Errors
    ///
    /// As every commit.
    #[cfg(feature = "testing")]
    pub async fn set_code_tool_deployments(
        &self,
        tool: &caliber_core::id::CodeToolId,
        references: &[caliber_core::registry::DeploymentReference],
    ) -> Result<()> {
        let (tool, references) = (tool.clone(), references.to_vec());
        let work = move |conn: &mut sqlite::Connection| {
            run(queries::set_code_tool_deployments(conn, &tool, &references))?;
            Ok(Committed::default())
        };
        self.inner.writer.commit(Box::new(work)).await.map(drop)
    }

    /// What was written since the store was opened.
    pub fn statistics(&self) -> StoreStatistics {
        let counters = self.inner.writer.counters();
        StoreStatistics {
            transactions: counters.transactions.load(Ordering::Relaxed),
            commits: counters.commits.load(Ordering::Relaxed),
        }
    }

    /// Finishes the commits that wait, and refuses everything from then on.
    pub async fn close(&self) {
        self.inner.readers.close();
        self.inner.writer.close().await;
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Store")
            .field("path", &self.inner.settings.path)
            .field("key_ring", &self.inner.key_ring)
            .finish_non_exhaustive()
    }
}

/// What is said where a secret meets a store without keys.
pub(crate) fn no_key() -> Error {
    Error::new(
        ErrorKind::Key,
        "no key is configured for stored secrets; configure a key ring, or refer to the secret with env:// or file://",
    )
}

fn rotation_entry(
    principal: &Principal,
    surface: Surface,
    stale: &[SealedSecret],
    ring: &KeyRing,
) -> Result<AuditEntry> {
    let mut from: Vec<&str> = stale.iter().map(|sealed| sealed.key.as_str()).collect();
    from.sort_unstable();
    from.dedup();
    let details = serde_json::json!({
        "from": from,
        "to": ring.current().as_str(),
        "secret_count": stale.len(),
    });
    let entity = ("installation", "installation");
    let details = JsonText::of(&details)?;
    let (now, action) = (SystemClock.now(), AuditAction::RotateSecretKey);
    Ok(AuditEntry::new(
        principal, surface, now, action, entity, None, details,
    ))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::new(ErrorKind::Defect, "work on the store failed").with_source(error))?
}
