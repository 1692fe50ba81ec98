//! The one place where shapes of the wire and types of the core become each other.

mod access;
mod code_tools;
mod definition;
mod records;
mod servers;
mod tools;

pub(crate) use access::{grant, grantee, membership, new_token, project_reach, scopes, subject, token};
pub(crate) use code_tools::{
    code_tool, code_tool_patch, code_tool_query, code_tool_registration, code_tool_run, code_tool_source,
    code_tool_summary, code_tool_usage, run_call, sandbox,
};
pub(crate) use definition::{definition, patch};
pub(crate) use records::{approval, audit_entry, invocation_record, milliseconds};
pub(crate) use servers::{failed_check, good_check, server, server_query, summary};
pub(crate) use tools::{classification, difference, policy_input, tool, withheld};

use caliber_core::principal::Identity;
use caliber_core::reason::Reason;

use crate::wire;

pub(crate) fn reason(reason: Reason) -> wire::Reason {
    wire::Reason {
        code: reason.code.as_str(),
        text: reason.text,
    }
}

/// How it is known who acts, and the token when it was one.
fn identity(identity: &Identity) -> (wire::IdentityKind, Option<String>) {
    use wire::IdentityKind as Kind;
    match identity {
        Identity::Token(id) => (Kind::Token, Some(id.to_string())),
        Identity::Header => (Kind::Header, None),
        Identity::Host => (Kind::Host, None),
        Identity::LocalAdministrator => (Kind::LocalAdministrator, None),
        Identity::System => (Kind::System, None),
        _ => (Kind::Other, None),
    }
}
