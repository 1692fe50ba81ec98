//! Every query, written once: this module is a child of each backend, which gives it a `Connection`, a `Backend`
//! and `now`, the time of its database.
//!
//! Ordinary code that is compiled once per backend: PostgreSQL is a second parent, not a second copy. What only one
//! backend can do stays in that backend.
//!
//! What is found by a key is read with `get_result`, never with `first`: SQLite plans a statement with a bound `LIMIT`
//! again each time that it runs, which costs more than the reading.

use super::{Backend, Connection, now};

mod access;
mod admission;
mod approvals;
mod audit;
mod code_tools;
mod commit;
mod invocations;
mod revisions;
mod secrets;
mod servers;
mod tools;

pub(crate) use access::{grants, memberships, token_by_hash, tokens};
pub(crate) use admission::{admission, run_admission};
pub(crate) use approvals::{approval, approvals};
pub(crate) use audit::{audit, audit_entry, record as record_audit};
#[cfg(feature = "testing")]
pub(crate) use code_tools::set_code_tool_deployments;
pub(crate) use code_tools::{code_tool, code_tools, deployments_using_code_tool};
pub(crate) use commit::apply;
pub(crate) use invocations::{invocation, invocations};
pub(crate) use secrets::{keys_in_use, secret, stale_secrets, store as store_secrets};
#[cfg(feature = "testing")]
pub(crate) use servers::set_deployments;
pub(crate) use servers::{answers, deployments_using, server, server_by_name, servers};
pub(crate) use tools::{inventory, tool, tools};
