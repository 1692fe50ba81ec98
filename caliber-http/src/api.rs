//! The handlers: each reads the wire, asks the control plane, and writes the wire.

pub(crate) mod access;
pub(crate) mod approvals;
pub(crate) mod calls;
pub(crate) mod code_tools;
pub(crate) mod history;
pub(crate) mod operations;
pub(crate) mod servers;
pub(crate) mod tools;
