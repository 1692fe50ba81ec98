//! The MCP client side of caliber.

mod credentials;
mod endpoint;
pub mod launcher;

pub use endpoint::EndpointSettings;
pub use launcher::{LauncherSettings, PlainLauncher};
