//! `caliber-mcp-db relational`: read tools over one SQLite file.
//!
//! Three tools: `list_tables`, `describe_table` and `run_query`. That they only read is held twice and never by looking
//! at the SQL text: the connection is opened read-only with `query_only`, and SQLite's authorizer refuses every action
//! that is not reading. Each call is bounded in rows, bytes and time ([`Limits`]); a call whose caller is gone stops.
//!
//! ```no_run
//! use caliber_servers::database::relational::{RelationalOptions, RelationalServer};
//! use caliber_servers::transport::HttpOptions;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = RelationalServer::open(RelationalOptions::new("orders.db")).await?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! server.serve_http(listener, HttpOptions::default(), CancellationToken::new()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not bound
//!
//! - SQLite keeps large sorts and recursive queries in unnamed temporary files; their size is bounded by the time of a
//!   call only.
//! - One built-in function call on large values, and the expansion of common table expressions and views while a
//!   statement is compiled, cannot be interrupted: the caller is answered at the deadline, and the reader is busy until
//!   SQLite comes back. [`Limits::max_value_bytes`] and [`Limits::max_memory`] bound the two.
//! - Tables of the R-Tree module cannot be read, because that module prepares writes when it is opened.

mod authorizer;
mod budget;
mod descriptions;
mod handler;
mod limits;
mod outcome;
mod query;
mod reader;
mod readers;
mod schema;
mod text;
mod tools;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rmcp::model::Tool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use limits::Limits;
use readers::Readers;

use crate::transport::{self, HttpOptions, StdioOptions};
use crate::{Error, ErrorKind};

/// What a relational server serves, and within which limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RelationalOptions {
    /// The SQLite file. Symbolic links are resolved once, when the server is opened.
    pub database: PathBuf,
    /// What one call may cost.
    pub limits: Limits,
    /// A JSON file from tool names to descriptions that replace the built-in ones (at most 64 KiB; 1 to 4,096
    /// characters each). It is read again at every listing, so a description can change while the server runs.
    pub descriptions: Option<PathBuf>,
}

impl RelationalOptions {
    /// The default limits and built-in descriptions over the file `database`.
    pub fn new(database: impl Into<PathBuf>) -> Self {
        Self {
            database: database.into(),
            limits: Limits::default(),
            descriptions: None,
        }
    }
}

/// The relational server. Clones share the same readers and limits.
#[derive(Clone)]
pub struct RelationalServer {
    inner: Arc<Inner>,
}

struct Inner {
    readers: Readers,
    tools: Vec<Tool>,
    descriptions: Option<PathBuf>,
}

impl RelationalServer {
    /// Checks the options, starts the readers and reads the schema once.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Configuration`]: a limit is out of bounds, or the descriptions file cannot be used.
    /// - [`ErrorKind::Database`]: the file is missing, no regular file, unreadable, locked, damaged or no database.
    /// - [`ErrorKind::Internal`]: a thread could not be started.
    pub async fn open(options: RelationalOptions) -> Result<Self, Error> {
        let RelationalOptions {
            database,
            limits,
            descriptions,
        } = options;
        limits.check()?;
        let tools = tools::tools()?;
        let checked = descriptions.clone();
        let path = blocking(move || {
            if let Some(file) = checked {
                descriptions::load(&file)?;
            }
            resolve(&database)
        })
        .await?;
        let readers = Readers::start(path, &limits)?;
        readers
            .run(&CancellationToken::new(), |reader| reader.check())
            .await
            .map_err(|problem| {
                Error::new(
                    ErrorKind::Database,
                    format!("the database cannot be used: {}", problem.message()),
                )
            })?;
        Ok(Self {
            inner: Arc::new(Inner {
                readers,
                tools,
                descriptions,
            }),
        })
    }

    /// Serves streamable HTTP at `/mcp` on `listener`, until `cancel` fires and the open requests are done or the
    /// drain time of the options has passed.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Configuration`]: the address is not loopback and no bearer token is set, or an option is wrong.
    /// - [`ErrorKind::Transport`]: the listener has no address.
    pub async fn serve_http(
        &self,
        listener: TcpListener,
        options: HttpOptions,
        cancel: CancellationToken,
    ) -> Result<(), Error> {
        transport::serve_http(self.clone(), listener, options, cancel).await
    }

    /// Serves standard input and output, until the input ends or `cancel` fires.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Transport`]: the client did not begin with a valid handshake, or the output failed.
    pub async fn serve_stdio(&self, options: StdioOptions, cancel: CancellationToken) -> Result<(), Error> {
        transport::serve_stdio(self.clone(), options, cancel).await
    }
}

impl std::fmt::Debug for RelationalServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelationalServer")
            .field("descriptions", &self.inner.descriptions)
            .finish_non_exhaustive()
    }
}

/// The absolute path of the regular file that `database` leads to.
fn resolve(database: &Path) -> Result<PathBuf, Error> {
    let shown = || text::shown(&database.to_string_lossy());
    let path = database.canonicalize().map_err(|error| {
        Error::new(
            ErrorKind::Database,
            format!("the database file {} cannot be found", shown()),
        )
        .because(error)
    })?;
    let metadata = path.metadata().map_err(|error| {
        Error::new(
            ErrorKind::Database,
            format!("the database file {} cannot be read", shown()),
        )
        .because(error)
    })?;
    if !metadata.is_file() {
        return Err(Error::new(
            ErrorKind::Database,
            format!("{} is not a regular file", shown()),
        ));
    }
    if metadata.len() == 0 {
        return Err(Error::new(
            ErrorKind::Database,
            format!(
                "the database file {} is empty; create the database first",
                shown()
            ),
        ));
    }
    Ok(path)
}

/// Runs blocking file work off the threads of the runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "file work was cut off").because(error))?
}
