//! The store, tried through its ports, against crashes, and against files that are not what they should be.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test ends when something fails"
)]

mod admission;
mod backup;
mod conformance;
mod crash;
mod group_commit;
mod migrations;
mod open;
mod paging;
mod retention;
mod secrets;
mod support;
