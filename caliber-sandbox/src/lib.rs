//! Code tools in isolation that the kernel enforces.
//!
//! A tool's code never runs in the process that asks for it, its import included. Each run is a process tree of its own
//! inside namespaces, a private root, Landlock, a system call filter and resource limits; what of that holds on a
//! machine is found out by trying, and reported.

mod places;
mod report;
pub mod settings;
pub mod snapshot;

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "linux")]
pub mod pin;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(target_os = "linux")]
mod sandbox;
mod unsupported;

#[cfg(target_os = "linux")]
pub use sandbox::LocalSandbox;
pub use settings::{Limits, SandboxSettings};
pub use unsupported::UnsupportedSandbox;
