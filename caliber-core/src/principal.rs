//! Who asks: subjects, scopes, and where the request came in.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::id::{ProjectId, TokenId};
use crate::secret::SecretText;
use crate::text::shown;

/// The longest subject, in bytes.
pub const SUBJECT_LENGTH: usize = 256;

/// The name of a person or a program, as the identity provider spells it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subject(Box<str>);

impl Subject {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Subject {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let valid = (1..=SUBJECT_LENGTH).contains(&text.len())
            && text.trim() == text
            && !crate::text::has_suspicious(text);
        if valid {
            Ok(Self(text.into()))
        } else {
            Err(Error::invalid(
                "subject",
                format!(
                    "{} is no subject; use 1 to {SUBJECT_LENGTH} visible characters",
                    shown(text)
                ),
            ))
        }
    }
}

impl TryFrom<String> for Subject {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.0.into()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

/// One right. `viewer` < `operator`; `approver` stands apart; `admin` implies all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Sees what the project shows.
    Viewer,
    /// Works with it: cases, calibration, jobs.
    Operator,
    /// Consents to calls that need it.
    Approver,
    /// Registers servers, classifies tools, grants.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Approver, Self::Admin];

    /// The word, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Approver => "approver",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| {
                Error::invalid(
                    "scope",
                    format!(
                        "{} is no scope; use viewer, operator, approver or admin",
                        shown(text)
                    ),
                )
            })
    }
}

/// A set of scopes, with what each implies.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Scope>", into = "Vec<Scope>")]
pub struct Scopes(u8);

impl Scopes {
    /// No scope.
    pub const NONE: Self = Self(0);

    /// Whether the set holds `scope`, directly or implied.
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    /// The set with `scope` and what it implies.
    #[must_use]
    pub fn with(self, scope: Scope) -> Self {
        let implied: &[Scope] = match scope {
            Scope::Viewer => &[Scope::Viewer],
            Scope::Operator => &[Scope::Viewer, Scope::Operator],
            Scope::Approver => &[Scope::Viewer, Scope::Approver],
            Scope::Admin => &Scope::ALL,
        };
        Self(implied.iter().fold(self.0, |bits, scope| bits | bit(*scope)))
    }

    /// The scopes of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every scope of `other` is in this set.
    pub fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The scopes, weakest first.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.allow(*scope))
    }
}

fn bit(scope: Scope) -> u8 {
    1 << (scope as u8)
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        scopes.into_iter().fold(Self::NONE, Self::with)
    }
}

impl From<Vec<Scope>> for Scopes {
    fn from(scopes: Vec<Scope>) -> Self {
        scopes.into_iter().collect()
    }
}

impl From<Scopes> for Vec<Scope> {
    fn from(scopes: Scopes) -> Self {
        scopes.iter().collect()
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_set()
            .entries(self.iter().map(Scope::as_str))
            .finish()
    }
}

/// How a principal was established; it is audited with every act.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Identity {
    /// An API token.
    Token(TokenId),
    /// A header that a trusted proxy set.
    Header,
    /// The program that links caliber vouches for the subject.
    Host,
    /// A person at the machine that holds the database.
    LocalAdministrator,
    /// caliber itself: refreshes and sweeps.
    System,
}

/// Who asks, with which scopes, in which project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Whom to hold responsible.
    pub subject: Subject,
    /// How we know.
    pub identity: Identity,
    /// The project that the request works in.
    pub project: ProjectId,
    /// The scopes held there.
    pub scopes: Scopes,
    /// Whether the scopes hold in every project.
    pub everywhere: bool,
}

impl Principal {
    /// The person at the machine, with every right.
    pub fn local_administrator() -> Self {
        Self {
            subject: Subject("local-administrator".into()),
            identity: Identity::LocalAdministrator,
            project: ProjectId::default(),
            scopes: Scopes::NONE.with(Scope::Admin),
            everywhere: true,
        }
    }

    /// caliber itself.
    pub fn system() -> Self {
        Self {
            subject: Subject("system".into()),
            identity: Identity::System,
            ..Self::local_administrator()
        }
    }

    /// A subject that the linking program vouches for, with `scopes` in `project`.
    pub fn host(subject: Subject, project: ProjectId, scopes: Scopes) -> Self {
        Self {
            subject,
            identity: Identity::Host,
            project,
            scopes,
            everywhere: false,
        }
    }

    /// The scopes held in `project`.
    pub fn scopes_in(&self, project: &ProjectId) -> Scopes {
        if self.everywhere || self.project == *project {
            self.scopes
        } else {
            Scopes::NONE
        }
    }

    /// Refuses a principal without `scope` in `project`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forbidden`], naming what is wanted and what is held.
    pub fn require(&self, scope: Scope, project: &ProjectId) -> Result<()> {
        let held = self.scopes_in(project);
        if held.allow(scope) {
            return Ok(());
        }
        let names: Vec<_> = held.iter().map(Scope::as_str).collect();
        let held = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        Err(Error::new(
            ErrorKind::Forbidden,
            format!("this needs the scope {scope} in project {project}; held there: {held}"),
        ))
    }
}

/// Where a call came in. It is recorded; no rule depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Surface {
    /// The library, called by the program that links it.
    Library,
    /// The operator API.
    Http,
    /// The `caliber` command.
    Command,
    /// The playground of the operator API or console.
    Playground,
    /// The inbound MCP endpoint.
    Inbound,
    /// A calibration run.
    Calibration,
    /// A workflow.
    Workflow,
    /// caliber itself.
    System,
    /// What a newer version of caliber wrote into a shared store, and this one does not know.
    #[serde(other)]
    Unknown,
}

impl Surface {
    /// The word, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Http => "http",
            Self::Command => "command",
            Self::Playground => "playground",
            Self::Inbound => "inbound",
            Self::Calibration => "calibration",
            Self::Workflow => "workflow",
            Self::System => "system",
            Self::Unknown => "unknown",
        }
    }
}

/// What a caller presented to prove who it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Credential {
    /// A bearer token.
    Bearer(SecretText),
    /// A subject that a trusted proxy vouches for; the surface has checked that it is one.
    TrustedSubject(String),
}

/// Turns a credential into a principal. Fails closed: an outage is `Unavailable`, never a guess.
#[async_trait]
pub trait Authenticator: Send + Sync + fmt::Debug {
    /// The principal behind `credential`, working in `project` (or in its own, when none is asked for).
    ///
    /// # Errors
    ///
    /// `Unauthenticated` for a credential that is wrong, expired or revoked; `Unavailable` for an outage.
    async fn authenticate(&self, credential: &Credential, project: Option<&ProjectId>) -> Result<Principal>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_imply_what_they_should_and_no_more() {
        let of = |scope| Scopes::NONE.with(scope);
        assert!(of(Scope::Operator).allow(Scope::Viewer));
        assert!(!of(Scope::Operator).allow(Scope::Approver));
        assert!(!of(Scope::Approver).allow(Scope::Operator));
        assert!(Scope::ALL.into_iter().all(|scope| of(Scope::Admin).allow(scope)));
        assert!(!of(Scope::Viewer).covers(of(Scope::Operator)));
    }

    #[test]
    fn scopes_end_at_the_project() {
        let project: ProjectId = "one".parse().unwrap();
        let principal = Principal::host(
            "ada".parse().unwrap(),
            project.clone(),
            Scopes::NONE.with(Scope::Admin),
        );
        assert!(principal.require(Scope::Admin, &project).is_ok());
        let other = principal
            .require(Scope::Viewer, &"two".parse().unwrap())
            .unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Forbidden);
    }
}
