#![doc = include_str!("../README.md")]

mod breaker;
mod client;
mod connection;
mod convert;
mod credentials;
mod endpoint;
mod error;
mod gateway;
mod inbox;
mod launcher;
mod listing;
mod mirror;
mod opening;
mod places;
mod pool;
mod ration;
mod raw;
mod redact;
mod session;
mod settings;
mod transport;

pub use endpoint::EndpointSettings;
pub use gateway::McpGateway;
pub use launcher::{LauncherSettings, PlainLauncher};
pub use settings::GatewaySettings;
