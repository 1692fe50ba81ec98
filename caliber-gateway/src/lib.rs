//! The MCP client side of caliber.

mod credentials;
