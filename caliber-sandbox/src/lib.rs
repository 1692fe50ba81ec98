//! Code tools in isolation that the kernel enforces.
//!
//! A tool's code never runs in the process that asks for it, its import included. Each run is a process tree of its own
//! inside namespaces, a private root, Landlock, a system call filter and resource limits; what of that holds on a
//! machine is found out by trying, and reported.

use std::sync::Arc;

use caliber_core::Result;
use caliber_core::process::ProcessLauncher;
use caliber_core::sandbox::Sandbox;

#[cfg(any(target_os = "linux", feature = "remote"))]
mod places;
#[cfg(any(target_os = "linux", feature = "remote"))]
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
pub use settings::{
    LauncherSettings, Limits, PinLimits, SandboxSettings, ServerLimits, ServerMatch, ServerProfile,
};
pub use unsupported::UnsupportedSandbox;

/// What starts stdio servers in namespaces of their own.
///
/// # Errors
///
/// `Invalid` for settings that cannot be; `Unsupported` on other systems than Linux.
pub fn launcher(settings: LauncherSettings) -> Result<Arc<dyn ProcessLauncher>> {
    #[cfg(target_os = "linux")]
    return Ok(Arc::new(linux::launcher::NamespaceLauncher::new(settings)?));
    #[cfg(not(target_os = "linux"))]
    {
        settings.check()?;
        Err(caliber_core::Error::new(
            caliber_core::ErrorKind::Unsupported,
            "only Linux has the namespaces that servers would be started in; start them as plain children",
        ))
    }
}

/// The sandbox of this machine: a `LocalSandbox` on Linux; elsewhere one that enforces nothing, says so, and runs
/// nothing.
///
/// # Errors
///
/// `Invalid` for settings that cannot work. What the machine cannot do is in the report.
pub async fn start(settings: SandboxSettings) -> Result<Arc<dyn Sandbox>> {
    #[cfg(target_os = "linux")]
    return Ok(Arc::new(LocalSandbox::start(settings).await?));
    #[cfg(not(target_os = "linux"))]
    return Ok(Arc::new(UnsupportedSandbox::new(settings.required)));
}
