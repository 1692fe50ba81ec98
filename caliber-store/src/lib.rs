#![doc = include_str!("../README.md")]

mod cursor;
mod error;
mod keys;
mod registry;
mod rows;
mod schema;
mod settings;
mod sqlite;
mod store;

pub use error::{Error, ErrorKind, Result};
pub use keys::{KEY_RING_LENGTH, KeyId, KeyRing};
pub use settings::StoreSettings;
pub use store::{Store, StoreStatistics};
