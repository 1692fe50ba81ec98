//! The policy from outside, through core's ports.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod admission;
mod agreement;
mod boundary;
mod conformance;
mod coverage;
mod environment;
mod facts;
mod naive;
mod naive_runs;
mod quota;
mod remote;
mod run_agreement;
mod run_facts;
mod runs;
mod stdio;
