//! The API on a real socket, over the in-memory references of the core.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod access;
mod approvals;
mod authentication;
mod calls;
mod code_tools;
mod document;
mod hostile;
mod input;
mod operations;
mod secrets;
mod servers;
mod support;
mod tools;
