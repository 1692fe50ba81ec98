//! Database servers.

pub mod relational;
