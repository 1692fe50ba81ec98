//! The operator HTTP API of caliber: routes over [`caliber_core::Caliber`], and nothing of its own to decide.
//!
//! [`router`] gives the API as an [`axum::Router`] for a host that serves HTTP itself. [`serve`] runs it on a
//! listener with the limits that a server on a network needs. [`openapi`] is the document that both answer
//! under `/openapi.json`.
//!
//! Rules live in `caliber-core`; this crate authenticates, reads and writes the wire, and guards the door.

mod api;
mod body;
mod convert;
mod document;
mod error;
mod explorer;
mod guard;
mod identity;
mod input;
mod metrics;
mod origin;
mod problem;
mod reply;
mod router;
mod serve;
mod settings;
mod stall;
mod state;
mod wire;

/// The type of [`router`], of the version of axum that this crate uses.
pub use axum::Router;
pub use document::openapi;
pub use error::{Error, Result};
pub use identity::HostCaller;
pub use problem::HttpReason;
pub use router::router;
pub use serve::serve;
pub use settings::{ApiPrefix, Authentication, HttpSettings, PROJECT_HEADER, TrustedIdentity};
