//! The gateway through core's use cases, over the rig's servers.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod calls;
mod conformance;
mod framing;
mod handshake;
mod http;
mod lists;
mod openings;
mod results;
mod sessions;
mod support;
