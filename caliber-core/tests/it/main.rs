//! The control plane over the in-memory references, and the references under the suites.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, like tests"
)]

mod access;
mod approvals;
mod blocking;
mod calls;
mod code_tools;
mod conformance;
mod kinds;
mod life;
mod listings;
mod recorder;
mod revocation;
mod runs;
mod secrets;
mod support;
mod tenants;
