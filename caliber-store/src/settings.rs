//! What a store is opened with.

use std::path::PathBuf;
use std::time::Duration;

use crate::keys::KeyRing;

/// Where the database is and how much it may take.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The database file; default `caliber.db` in the working directory. Two more files stand beside it while it
    /// is open, named after it with `-wal` and `-shm`. It must lie on a local disk: SQLite's write-ahead log
    /// shares memory between processes, which network file systems do not.
    pub path: PathBuf,
    /// Whether a database that is absent is made (readable by its owner only); default yes. Its directory is
    /// never made.
    pub create: bool,
    /// The keys of stored secrets; default none, and then a literal secret is refused.
    pub key_ring: Option<KeyRing>,
    /// Connections for reading, 1 to 64; default 4. Each takes one thread of the runtime's blocking pool for as
    /// long as a read lasts.
    pub readers: usize,
    /// Commits that may wait for the writer, at least 1; default 1,024.
    pub queue: usize,
    /// Commits that share one transaction at most, at least 1; default 256.
    pub batch: usize,
    /// The longest wait for a place in the queue or for a connection for reading; default 5 s.
    pub wait: Duration,
    /// The longest wait for another process that writes to the same database; default 5 s.
    pub busy: Duration,
    /// The largest database file in bytes; default none, the disk is the limit. More is refused as full.
    pub max_bytes: Option<u64>,
    /// The write-ahead log in bytes from which on the writer waits for readers in order to empty it; default
    /// 64 MiB. Ordinarily it stays near 4 MiB.
    pub wal_bytes: u64,
    /// The page cache of the writer in bytes; default 8 MiB. Each reader has a quarter of it.
    pub cache_bytes: u32,
    /// How much of the file is read through mapped memory, in bytes; default none. Mapping saves a copy per page;
    /// on the other hand a file that somebody cuts short then ends the process instead of a read.
    pub mmap_bytes: u64,
    /// Whether the pages of the whole file are checked when it is opened; default yes. It reads the file once.
    pub check: bool,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            path: PathBuf::from("caliber.db"),
            create: true,
            key_ring: None,
            readers: 4,
            queue: 1_024,
            batch: 256,
            wait: Duration::from_secs(5),
            busy: Duration::from_secs(5),
            max_bytes: None,
            wal_bytes: 64 << 20,
            cache_bytes: 8 << 20,
            mmap_bytes: 0,
            check: true,
        }
    }
}
