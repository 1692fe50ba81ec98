//! The control plane as a whole: against real servers, hostile servers, and through the command.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unreachable,
    clippy::unwrap_used,
    reason = "a test fails by panicking, its helpers too"
)]

mod architecture;
mod behaviour;
mod canaries;
mod cli;
mod config;
mod hostile;
mod launcher;
mod peers;
mod race;
mod support;
