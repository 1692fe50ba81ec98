//! The transports that the servers share: standard input and output, and streamable HTTP.

mod bearer;
mod http;
mod stdio;

pub use bearer::BearerToken;
pub use http::HttpOptions;
pub(crate) use http::serve_http;
pub use stdio::StdioOptions;
pub(crate) use stdio::serve_stdio;
