#![doc = include_str!("../README.md")]

pub mod address;
pub mod admission;
pub mod approval;
pub mod audit;
pub mod blocking;
pub mod calibration;
pub mod clock;
pub mod code_tool;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod descriptor;
pub mod digest;
pub mod gateway;
pub mod grant;
pub mod id;
pub mod inventory;
pub mod invocation;
pub mod json;
#[cfg(feature = "conformance")]
pub mod memory;
pub mod page;
pub mod policy;
pub mod principal;
pub mod process;
pub mod quota;
pub mod readiness;
pub mod reason;
pub mod registry;
pub mod sandbox;
pub mod schema;
pub mod secret;
pub mod server;
pub mod text;
pub mod token;

mod caliber;
mod error;

pub use caliber::{
    Caliber, CaliberBuilder, CheckOutcome, CodeToolCall, CodeToolPatch, CodeToolRegistration, CodeToolRun,
    CodeToolView, DiscoveryOutcome, Drift, InvokeOutcome, InvokeRequest, ServerPatch, ServerRegistration,
    ServerView, Settings, TokenRequest, ToolDetail, ToolListing,
};
pub use error::{Error, ErrorKind, FieldProblem, Result, Retry};
