//! Tokens, memberships, grants, and who a credential stands for.

use async_trait::async_trait;

use super::{Caliber, Inner};
use crate::audit::AuditAction;
use crate::clock::Timestamp;
use crate::code_tool::FamilyName;
use crate::descriptor::ToolName;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, GrantedTools, Grantee, Membership};
use crate::id::{GrantId, ProjectId, ServerId, TokenId};
use crate::page::{Page, PageRequest};
use crate::principal::{Authenticator, Credential, Identity, Principal, Scope, Scopes, Subject, Surface};
use crate::registry::{Change, Expect};
use crate::server::Visibility;
use crate::token::{NewToken, TokenRecord, generate, token_hash};

/// The longest label of a token, in bytes.
const LABEL_LENGTH: usize = 256;

/// A token to be made.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// Whom it will speak for.
    pub subject: Subject,
    /// Where its scopes will hold; everywhere, when no project is named.
    pub project: Option<ProjectId>,
    /// What it may do; no more than its maker may.
    pub scopes: Scopes,
    /// What it is for; at most 256 bytes.
    pub label: String,
    /// When it ends, if ever.
    pub expires_at: Option<Timestamp>,
}

impl Caliber {
    /// Makes a token. Its text is in the answer and nowhere else.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `admin` where the token will hold, or when the token would hold more than its maker;
    /// `Invalid` for an empty set of scopes or an end in the past.
    pub async fn create_token(&self, who: (&Principal, Surface), request: TokenRequest) -> Result<NewToken> {
        let (inner, principal) = (&self.inner, who.0);
        require_reach(principal, request.project.as_ref())?;
        if request.scopes.is_empty() {
            return Err(Error::invalid("scopes", "name at least one scope"));
        }
        if !principal.scopes.covers(request.scopes) {
            return Err(Error::new(
                ErrorKind::Forbidden,
                "a token cannot hold more than its maker",
            ));
        }
        if request.label.len() > LABEL_LENGTH {
            return Err(Error::invalid(
                "label",
                format!("it is longer than {LABEL_LENGTH} bytes"),
            ));
        }
        let now = inner.now();
        if request.expires_at.is_some_and(|end| end <= now) {
            return Err(Error::invalid("expires_at", "it lies in the past"));
        }
        let text = generate();
        let record = TokenRecord {
            id: TokenId::new(),
            subject: request.subject,
            project: request.project,
            scopes: request.scopes,
            label: request.label,
            created_by: principal.subject.clone(),
            created_at: now,
            expires_at: request.expires_at,
            revoked_at: None,
        };
        let details = serde_json::json!({
            "subject": record.subject,
            "scopes": record.scopes,
            "label": record.label,
            "expires_at": record.expires_at,
        });
        let audit = inner.entry(
            who,
            AuditAction::CreateToken,
            ("token", record.id.as_str()),
            record.project.as_ref(),
            details,
        )?;
        let change = Change::CreateToken {
            record: record.clone(),
            hash: token_hash(text.expose()),
        };
        inner.commit(change, Expect::nothing(), audit).await?;
        Ok(NewToken { text, record })
    }

    /// The tokens that the caller may revoke, newest first.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `admin`.
    pub async fn tokens(&self, principal: &Principal, page: &PageRequest) -> Result<Page<TokenRecord>> {
        principal.require(Scope::Admin, &principal.project)?;
        let own = [principal.project.clone()];
        let projects: Option<&[ProjectId]> = if principal.everywhere { None } else { Some(&own) };
        self.inner.registry.tokens(projects, page).await
    }

    /// Ends a token at once.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is none that the caller may revoke, or it is revoked already; `Forbidden` without `admin`.
    pub async fn revoke_token(&self, who: (&Principal, Surface), id: &TokenId) -> Result<()> {
        let inner = &self.inner;
        who.0.require(Scope::Admin, &who.0.project)?;
        let own = who.0.project.clone();
        let project = if who.0.everywhere { None } else { Some(&own) };
        let audit = inner.entry(
            who,
            AuditAction::RevokeToken,
            ("token", id.as_str()),
            project,
            serde_json::json!({}),
        )?;
        let change = Change::RevokeToken {
            id: id.clone(),
            at: inner.now(),
            project: project.cloned(),
        };
        inner.commit(change, Expect::nothing(), audit).await.map(drop)
    }

    /// Sets the scopes of a subject, whole; an empty set ends the membership.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `admin` where the membership holds.
    pub async fn set_membership(&self, who: (&Principal, Surface), membership: Membership) -> Result<()> {
        require_reach(who.0, membership.project.as_ref())?;
        let details = serde_json::json!({ "subject": membership.subject, "scopes": membership.scopes });
        let entity = ("membership", membership.subject.as_str());
        let audit = self.inner.entry(
            who,
            AuditAction::SetMembership,
            entity,
            membership.project.as_ref(),
            details,
        )?;
        self.inner
            .commit(Change::SetMembership { membership }, Expect::nothing(), audit)
            .await
            .map(drop)
    }

    /// Lets somebody invoke a server's tools. A public server is granted by the caller's project to its own
    /// people; every other one by its own project. The tools must also be classified and allowed.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is absent or hidden, `Forbidden` without `admin` in the granting project.
    pub async fn grant(
        &self,
        who: (&Principal, Surface),
        server: &ServerId,
        grantee: Grantee,
        tool: Option<ToolName>,
    ) -> Result<Grant> {
        let record = self.inner.visible_server(who.0, server).await?;
        let project = match record.visibility {
            Visibility::Public => who.0.project.clone(),
            Visibility::Project | Visibility::User => record.project,
        };
        let tools = GrantedTools::Server {
            server: server.clone(),
            tool,
        };
        self.inner.give(who, project, grantee, tools).await
    }

    /// Lets somebody run every version of a family: that of the caller's project, or, when it has none of this name,
    /// the public one of another. The caller's project grants, to its own people.
    ///
    /// # Errors
    ///
    /// `NotFound` when the caller sees no such family, `Forbidden` without `admin` in the caller's project.
    pub async fn grant_family(
        &self,
        who: (&Principal, Surface),
        family: &FamilyName,
        grantee: Grantee,
    ) -> Result<Grant> {
        let project = self.inner.family_project(who.0, family).await?;
        let tools = GrantedTools::Family {
            project,
            family: family.clone(),
        };
        self.inner.give(who, who.0.project.clone(), grantee, tools).await
    }

    /// The grants of the caller's project.
    ///
    /// # Errors
    ///
    /// `Forbidden` without any scope.
    pub async fn grants(&self, principal: &Principal, page: &PageRequest) -> Result<Page<Grant>> {
        principal.require(Scope::Viewer, &principal.project)?;
        self.inner.registry.grants(&principal.project, page).await
    }

    /// Takes a grant of the caller's project back.
    ///
    /// # Errors
    ///
    /// `NotFound` when the project has no such grant, `Forbidden` without `admin`.
    pub async fn revoke_grant(&self, who: (&Principal, Surface), id: &GrantId) -> Result<()> {
        let project = who.0.project.clone();
        who.0.require(Scope::Admin, &project)?;
        let details = serde_json::json!({});
        let audit = self.inner.entry(
            who,
            AuditAction::DeleteGrant,
            ("grant", id.as_str()),
            Some(&project),
            details,
        )?;
        let change = Change::DeleteGrant {
            project,
            id: id.clone(),
        };
        self.inner
            .commit(change, Expect::nothing(), audit)
            .await
            .map(drop)
    }
}

impl Inner {
    async fn give(
        &self,
        who: (&Principal, Surface),
        project: ProjectId,
        grantee: Grantee,
        tools: GrantedTools,
    ) -> Result<Grant> {
        who.0.require(Scope::Admin, &project)?;
        let grant = Grant {
            id: GrantId::new(),
            project,
            grantee,
            tools,
            created_by: who.0.subject.clone(),
            created_at: self.now(),
        };
        let details = match &grant.tools {
            GrantedTools::Server { server, tool } => {
                serde_json::json!({ "server_id": server, "grantee": grant.grantee, "tool_name": tool })
            }
            GrantedTools::Family { project, family } => {
                serde_json::json!({ "family": family, "family_project": project, "grantee": grant.grantee })
            }
        };
        let audit = self.entry(
            who,
            AuditAction::CreateGrant,
            ("grant", grant.id.as_str()),
            Some(&grant.project),
            details,
        )?;
        let change = Change::CreateGrant { grant: grant.clone() };
        self.commit(change, Expect::nothing(), audit).await?;
        Ok(grant)
    }
}

/// What holds in one project takes its admin; what holds everywhere takes an admin of everything.
fn require_reach(principal: &Principal, project: Option<&ProjectId>) -> Result<()> {
    match project {
        Some(project) => principal.require(Scope::Admin, project),
        None if principal.everywhere => principal.require(Scope::Admin, &principal.project),
        None => Err(Error::new(
            ErrorKind::Forbidden,
            "what holds in every project takes an admin of every project",
        )),
    }
}

#[async_trait]
impl Authenticator for Caliber {
    async fn authenticate(&self, credential: &Credential, project: Option<&ProjectId>) -> Result<Principal> {
        match credential {
            Credential::Bearer(text) => {
                // One answer for every kind of wrong token: what it lacks is nobody's business.
                let refused = || {
                    Error::new(
                        ErrorKind::Unauthenticated,
                        "the token is unknown, expired or revoked",
                    )
                };
                let found = self
                    .inner
                    .registry
                    .token_by_hash(&token_hash(text.expose()))
                    .await?;
                let token = found.ok_or_else(refused)?;
                let now = self.inner.now();
                if token.revoked_at.is_some() || token.expires_at.is_some_and(|end| end <= now) {
                    return Err(refused());
                }
                let everywhere = token.project.is_none();
                let active = match (&token.project, project) {
                    (Some(own), Some(asked)) if own != asked => {
                        return Err(Error::new(
                            ErrorKind::Forbidden,
                            "the token belongs to another project",
                        ));
                    }
                    (Some(own), _) => own.clone(),
                    (None, asked) => asked.cloned().unwrap_or_default(),
                };
                Ok(Principal {
                    subject: token.subject,
                    identity: Identity::Token(token.id),
                    project: active,
                    scopes: token.scopes,
                    everywhere,
                })
            }
            Credential::TrustedSubject(subject) => {
                let subject: Subject = subject.parse().map_err(|error| {
                    Error::new(ErrorKind::Unauthenticated, "the identity header holds no subject")
                        .with_source(error)
                })?;
                let project = project.cloned().unwrap_or_default();
                let memberships = self.inner.registry.memberships(&subject).await?;
                let held = |in_project: Option<&ProjectId>| {
                    memberships
                        .iter()
                        .filter(|membership| membership.project.as_ref() == in_project)
                        .fold(Scopes::NONE, |scopes, membership| scopes.union(membership.scopes))
                };
                let (everywhere, here) = (held(None), held(Some(&project)));
                Ok(Principal {
                    subject,
                    identity: Identity::Header,
                    project,
                    scopes: everywhere.union(here),
                    // Scopes of one project must not reach into another.
                    everywhere: !everywhere.is_empty() && everywhere.covers(here),
                })
            }
        }
    }
}
