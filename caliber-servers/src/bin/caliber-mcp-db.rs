//! `caliber-mcp-db`: database servers over stdio or streamable HTTP.
//!
//! Exit codes: 0 the client or the operator ended it; 1 a transport failed; 2 the arguments or settings are wrong;
//! 3 the database cannot be used.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use caliber_servers::database::relational::{Limits, RelationalOptions, RelationalServer};
use caliber_servers::transport::{BearerToken, HttpOptions, StdioOptions};
use caliber_servers::{Error, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio_util::sync::CancellationToken;

/// Time that reads still running at the end may take before the process leaves without them.
const LAST_READS: Duration = Duration::from_secs(1);

/// Database servers that speak the Model Context Protocol.
#[derive(Debug, Parser)]
#[command(name = "caliber-mcp-db", version)]
struct Command {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Read tools over one SQLite file: list_tables, describe_table, run_query.
    Relational(Relational),
}

#[derive(Debug, Args)]
struct Relational {
    /// The SQLite file. It must exist, and is never written to.
    #[arg(long, value_name = "PATH")]
    database: PathBuf,
    /// How clients reach the server.
    #[arg(long, value_enum, default_value_t = Transport::Stdio)]
    transport: Transport,
    /// Address for HTTP; the endpoint is /mcp. Port 0 takes a free one, and the first line of output names it.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// File with the bearer token that every HTTP request must carry; needed unless the address is loopback.
    #[arg(long, value_name = "FILE")]
    bearer_token_file: Option<PathBuf>,
    /// A name that the Host header of HTTP requests may hold beside the loopback names; may be repeated.
    #[arg(long = "allow-host", value_name = "HOST")]
    allowed_hosts: Vec<String>,
    /// An origin whose web pages may call over HTTP, as https://host:port; may be repeated.
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    allowed_origins: Vec<String>,
    /// Rows in one result.
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_rows)]
    max_rows: usize,
    /// Bytes of JSON that the rows of one result may take.
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_bytes)]
    max_bytes: usize,
    /// Milliseconds for one call.
    #[arg(long, value_name = "N", default_value_t = default_timeout_ms())]
    timeout_ms: u64,
    /// Calls that read at the same time.
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_running)]
    max_running: usize,
    /// Calls that wait for a reader; the next one is refused.
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_waiting)]
    max_waiting: usize,
    /// Bytes of any one value that a statement works on.
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_value_bytes)]
    max_value_bytes: usize,
    /// Bytes of memory for SQLite as a whole.
    #[arg(long, value_name = "N", default_value_t = 64 * 1024 * 1024)]
    max_memory_bytes: usize,
    /// Bytes of one request: a line on stdio, a body over HTTP.
    #[arg(long, value_name = "N", default_value_t = HttpOptions::default().max_body_bytes)]
    max_request_bytes: usize,
    /// JSON file from tool names to descriptions that replace the built-in ones; read again at each listing.
    #[arg(long, value_name = "FILE")]
    descriptions: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// Standard input and output.
    Stdio,
    /// Streamable HTTP.
    Http,
}

fn default_timeout_ms() -> u64 {
    u64::try_from(Limits::default().timeout.as_millis()).unwrap_or(u64::MAX)
}

fn main() -> ExitCode {
    let Mode::Relational(arguments) = Command::parse().mode;
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::Level::WARN.into())
        .from_env_lossy();
    // Standard output belongs to the protocol.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();

    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to tell if even this cannot be written.
            let _ = writeln!(std::io::stderr(), "caliber-mcp-db: {error:#}");
            ExitCode::from(match error.downcast_ref::<Error>().map(Error::kind) {
                Some(ErrorKind::Configuration) => 2,
                Some(ErrorKind::Database) => 3,
                _ => 1,
            })
        }
    }
}

fn run(arguments: Relational) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    let result = runtime.block_on(serve(arguments));
    // A read of standard input cannot be cancelled, so it is not waited for.
    runtime.shutdown_timeout(LAST_READS);
    result
}

async fn serve(arguments: Relational) -> anyhow::Result<()> {
    let cancel = CancellationToken::new();
    cancel_on_signal(cancel.clone())?;

    let mut options = RelationalOptions::new(&arguments.database);
    options.limits.max_rows = arguments.max_rows;
    options.limits.max_bytes = arguments.max_bytes;
    options.limits.timeout = Duration::from_millis(arguments.timeout_ms);
    options.limits.max_running = arguments.max_running;
    options.limits.max_waiting = arguments.max_waiting;
    options.limits.max_value_bytes = arguments.max_value_bytes;
    options.limits.max_memory = Some(arguments.max_memory_bytes);
    options.descriptions = arguments.descriptions.clone();
    let server = RelationalServer::open(options).await?;

    match arguments.transport {
        Transport::Stdio => {
            let mut options = StdioOptions::default();
            options.max_line_bytes = arguments.max_request_bytes;
            server.serve_stdio(options, cancel).await?;
        }
        Transport::Http => {
            let mut options = HttpOptions::default();
            options.bearer_token = arguments
                .bearer_token_file
                .as_deref()
                .map(BearerToken::from_file)
                .transpose()?;
            options.allowed_hosts = arguments.allowed_hosts;
            options.allowed_origins = arguments.allowed_origins;
            options.max_body_bytes = arguments.max_request_bytes;
            options.check_address(arguments.listen)?;
            let listener = tokio::net::TcpListener::bind(arguments.listen)
                .await
                .with_context(|| format!("cannot listen on {}", arguments.listen))?;
            let address = listener.local_addr().context("the listener has no address")?;
            writeln!(std::io::stdout(), "listening on http://{address}/mcp")?;
            server.serve_http(listener, options, cancel).await?;
        }
    }
    Ok(())
}

/// Cancels on SIGINT and SIGTERM.
fn cancel_on_signal(cancel: CancellationToken) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be received")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be received")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        cancel.cancel();
    });
    Ok(())
}
