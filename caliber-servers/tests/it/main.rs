//! The command `caliber-mcp-db` as its clients see it: raw JSON-RPC over both transports and both protocol families.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking"
)]

mod descriptions;
mod http;
mod library;
mod limits;
mod refusals;
mod start;
mod support;
mod tools;
mod values;
