//! The shapes of requests and answers. Each stands for itself: nothing of the core is written out by accident.

pub(crate) mod access;
pub(crate) mod approvals;
pub(crate) mod calls;
pub(crate) mod code_tools;
pub(crate) mod history;
pub(crate) mod servers;
pub(crate) mod tools;

use serde::Serialize;
use utoipa::ToSchema;

/// A code with a text a person can act on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Reason {
    /// For programs.
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) text: String,
}

/// How it is known who acts.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IdentityKind {
    /// An API token.
    Token,
    /// A header that a trusted proxy set.
    Header,
    /// The program that links caliber vouches for the subject.
    Host,
    /// A person at the machine that holds the database.
    LocalAdministrator,
    /// caliber itself.
    System,
    /// Another way, unknown to this version.
    Other,
}
