//! The MCP client side of caliber.

mod credentials;
mod endpoint;

pub use endpoint::EndpointSettings;
