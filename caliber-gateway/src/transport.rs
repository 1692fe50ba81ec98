//! The three ways to an upstream. They carry text, and know of MCP what their own rules demand.

use http::{HeaderName, HeaderValue};

use crate::error::Failure;
use crate::inbox::Reply;

pub(crate) mod event_stream;
pub(crate) mod sse;
pub(crate) mod stdio;
pub(crate) mod streamable_http;

/// The protocol family of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Era {
    /// `initialize` and sessions: 2024-11-05 to 2025-11-25.
    Legacy,
    /// `server/discover` and no sessions: 2026-07-28.
    Modern,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) id: u64,
    pub(crate) method: &'a str,
    /// The whole message.
    pub(crate) text: String,
    /// What the request is about, where the protocol wants it in a header: the name of a tool.
    pub(crate) name: Option<&'a str>,
    /// Arguments that are mirrored into headers.
    pub(crate) mirrored: &'a [(HeaderName, HeaderValue)],
    pub(crate) era: Era,
    /// The negotiated (or proposed) protocol revision; none before a legacy handshake.
    pub(crate) version: Option<&'a str>,
    /// The largest answer, in bytes.
    pub(crate) answer_bytes: usize,
}

impl Outgoing<'_> {
    /// Whether the upstream may be told that nobody waits any more. A handshake cannot be cancelled, and a server that
    /// was silent to `server/discover` would not understand the message either.
    pub(crate) fn is_cancellable(&self) -> bool {
        !matches!(self.method, "initialize" | "server/discover")
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) enum Transport {
    Stdio(stdio::Stdio),
    Http(streamable_http::StreamableHttp),
    Sse(sse::Sse),
}

impl Transport {
    /// Sends a request and waits for its answer. Dropping the future cancels the request at the upstream.
    ///
    /// # Errors
    ///
    /// A failure whose fate says whether the request was sent.
    pub(crate) async fn exchange(&self, outgoing: Outgoing<'_>) -> Result<Reply, Failure> {
        match self {
            Self::Stdio(stdio) => stdio.exchange(outgoing).await,
            Self::Http(http) => http.exchange(outgoing).await,
            Self::Sse(sse) => sse.exchange(outgoing).await,
        }
    }

    /// Sends a notification.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub(crate) async fn notify(&self, text: String, version: Option<&str>) -> Result<(), Failure> {
        match self {
            Self::Stdio(stdio) => stdio.notify(text).await,
            Self::Http(http) => http.notify(text, version).await,
            Self::Sse(sse) => sse.notify(text).await,
        }
    }

    /// Whether every request stands alone, so that all callers may use one connection, for a server of `era`.
    pub(crate) fn is_stateless(&self, era: Era) -> bool {
        matches!(self, Self::Http(_)) && era == Era::Modern
    }

    /// Whether the upstream can hold a caller's state in this connection.
    pub(crate) fn holds_state(&self, era: Era) -> bool {
        match self {
            Self::Stdio(_) => true,
            Self::Sse(_) => true,
            Self::Http(http) => era == Era::Legacy && http.has_session(),
        }
    }

    /// The end of what the process wrote to standard error, escaped.
    pub(crate) fn stderr_tail(&self) -> Option<String> {
        match self {
            Self::Stdio(stdio) => stdio.stderr_tail(),
            Self::Http(_) | Self::Sse(_) => None,
        }
    }

    /// Ends the connection and whatever belongs to it.
    pub(crate) async fn close(&self) {
        match self {
            Self::Stdio(stdio) => stdio.close().await,
            Self::Http(http) => http.close().await,
            Self::Sse(sse) => sse.close(),
        }
    }
}
