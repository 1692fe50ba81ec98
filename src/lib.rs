#![doc = include_str!("../README.md")]

/// The programs of the guide are compiled with the tests.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../docs/embedding.md")]
struct EmbeddingGuide;

#[cfg(feature = "sqlite")]
mod installation;
#[cfg(feature = "sandbox")]
mod places;
#[cfg(feature = "sqlite")]
mod secrets;

pub use caliber_core as core;
pub use caliber_gateway as gateway;
#[cfg(feature = "http")]
pub use caliber_http as http;
pub use caliber_policy as policy;
#[cfg(feature = "sandbox")]
pub use caliber_sandbox as sandbox;
#[cfg(feature = "sqlite")]
pub use caliber_store as store;

pub use caliber_core::{
    Caliber, CheckOutcome, CodeToolCall, CodeToolRegistration, CodeToolRun, DiscoveryOutcome, Drift, Error,
    ErrorKind, InvokeOutcome, InvokeRequest, Result, ServerRegistration, Settings, blocking,
};
#[cfg(feature = "sqlite")]
pub use installation::{Config, Installation, open};
#[cfg(feature = "sandbox")]
pub use places::SandboxChoice;
