//! Standard input and output: one JSON-RPC message per line.

use rmcp::ServerHandler;
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;
use tokio_util::sync::CancellationToken;

use crate::{Error, ErrorKind};

/// Settings of the stdio transport.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StdioOptions {
    /// Bytes of one line (default 4 MiB). A longer line is dropped with a message in the log, and is not answered,
    /// because its id is not known.
    pub max_line_bytes: usize,
}

impl Default for StdioOptions {
    fn default() -> Self {
        Self {
            max_line_bytes: 4 * 1024 * 1024,
        }
    }
}

pub(crate) async fn serve_stdio(
    handler: impl ServerHandler,
    options: StdioOptions,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let (input, output) = stdio_pipes();
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(options.max_line_bytes);
    let failed = |message: &str| Error::new(ErrorKind::Transport, message);
    let service = match serve_server_with_ct(handler, transport, cancel.clone()).await {
        Ok(service) => service,
        Err(_) if cancel.is_cancelled() => return Ok(()),
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => {
            return Err(failed("the client did not begin with a valid handshake").because(error));
        }
    };
    service
        .waiting()
        .await
        .map_err(|error| failed("the session ended early").because(error))?;
    Ok(())
}
