#![doc = include_str!("../README.md")]

pub mod admission;
pub mod code_tool;
pub mod quota;
pub mod readiness;
pub mod settings;

mod policy;

pub use policy::Policy;
pub use quota::ProcessQuota;
pub use settings::PolicySettings;
