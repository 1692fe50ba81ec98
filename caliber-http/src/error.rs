//! The error of starting and running the server. What a request gets is a problem document instead.

use std::net::SocketAddr;

/// The result of starting and running the server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the server cannot start, or has ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting cannot be used.
    #[error("the setting {setting} cannot be used: {problem}")]
    Setting {
        /// Its name, as in [`HttpSettings`](crate::HttpSettings).
        setting: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The listener is reachable from other machines, and requests would need no authentication.
    #[error("refusing to serve {address} without authentication; require it, or listen on loopback")]
    OpenBeyondLoopback {
        /// Where the listener is.
        address: SocketAddr,
    },
    /// The listener has no address.
    #[error("the listener cannot be used")]
    Listener(#[source] std::io::Error),
}
