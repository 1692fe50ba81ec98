//! A sandbox in another place: for control planes that may not make namespaces where they run, such as in most
//! containers.
//!
//! `serve` (on Linux) makes a `LocalSandbox` reachable over HTTP, for whoever holds its token. [`RemoteSandbox`] is the
//! port over such a service.
//!
//! Everything that a program names (source roots, package roots, executables) lies on the machine of the service, and
//! so do the private copies: pinning reads them there. The control plane needs no access to them.
//!
//! Whoever holds the token may run any code there, as far as the sandbox lets code go. Runs are kept apart by the
//! project that the control plane names; control planes that must not meet get a service each.
//!
//! # Protocol
//!
//! HTTP/1.1 with JSON bodies, and `Authorization: Bearer …` on all routes but `GET /health`. `GET /v1/report` answers
//! with the report; `POST /v1/pin`, `/v1/inspect` and `/v1/run` take what the port's methods take. Deadlines travel as
//! the time that is left. An error has a status of 400 or more and a body with the kind, the reason code and the text of
//! core's error; an answer without such a body comes from something between the two.

mod client;
mod dial;
#[cfg(target_os = "linux")]
mod service;
mod settings;
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "one half is the service's, which runs on Linux")
)]
mod token;
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "one half is the service's, which runs on Linux")
)]
mod wire;

pub use client::RemoteSandbox;
#[cfg(target_os = "linux")]
pub use service::{ServiceOptions, serve};
pub use settings::RemoteSettings;
pub use token::ServiceToken;
