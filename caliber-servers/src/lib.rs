//! First-party MCP servers of caliber.
//!
//! Each server is a library value that can be served over stdio or streamable HTTP, and a thin command over it:
//!
//! | server | command | module |
//! |---|---|---|
//! | relational database, read-only, SQLite | `caliber-mcp-db relational` | [`database::relational`] |
//!
//! The transports are shared: [`transport`] holds their settings. Both protocol families are spoken on both transports:
//! the legacy one with its `initialize` handshake (up to 2025-11-25) and the modern one (2026-07-28).
//!
//! As a library this crate installs no subscriber and no signal handler and reads no environment.

pub mod database;
mod error;
pub mod transport;

pub use error::{Error, ErrorKind};
