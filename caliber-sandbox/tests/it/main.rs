//! The sandbox against the kernel of this machine.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "a failing test is reported by its panic"
)]

#[cfg(target_os = "linux")]
mod adapter;
#[cfg(target_os = "linux")]
mod attacks;
#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod engine;
#[cfg(target_os = "linux")]
mod engine_ends;
#[cfg(target_os = "linux")]
mod engine_kept;
#[cfg(target_os = "linux")]
mod engine_leaves;
#[cfg(target_os = "linux")]
mod engine_modes;
#[cfg(target_os = "linux")]
mod launcher;
#[cfg(target_os = "linux")]
mod pin;
#[cfg(target_os = "linux")]
mod port;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(all(target_os = "linux", feature = "remote"))]
mod remote;
#[cfg(target_os = "linux")]
mod spawn;
#[cfg(target_os = "linux")]
mod support;
#[cfg(target_os = "linux")]
mod unprivileged;
