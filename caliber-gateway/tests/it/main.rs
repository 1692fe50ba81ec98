//! The gateway through core's use cases, over the rig's servers.

mod calls;
mod conformance;
mod support;
