//! The sandbox against the kernel of this machine.
#![allow(missing_docs, reason = "tests")]
