//! One change, with what it was decided on and who answers for it. The transaction is the caller's.

use caliber_core::audit::AuditEntry;
use caliber_core::registry::{Change, Commit, Committed, Revision};
use caliber_core::{Error as CoreError, ErrorKind};

use super::{Connection, access, approvals, audit, code_tools, invocations, revisions, servers, tools};
use crate::error::Result;
use crate::keys::SealedSecret;

/// Makes one change. `sealed` are the secrets of the change, which itself holds none any more; `prune_limit` is the
/// most records of one kind that one transaction removes.
pub(crate) async fn apply(
    conn: &mut Connection,
    commit: &Commit,
    sealed: &[SealedSecret],
    prune_limit: u32,
) -> Result<Committed> {
    revisions::check(conn, &commit.expect).await?;
    let committed = change(conn, commit, sealed, prune_limit).await?;
    // Sweeps keep their entry only when they touched something.
    let sweep = matches!(commit.change, Change::SettleOrphans { .. } | Change::Prune(_));
    if !sweep {
        audit::record(conn, commit.audit.iter()).await?;
    }
    Ok(committed)
}

async fn change(
    conn: &mut Connection,
    commit: &Commit,
    sealed: &[SealedSecret],
    prune_limit: u32,
) -> Result<Committed> {
    let revision = match &commit.change {
        Change::RegisterServer { record, .. } => servers::register(conn, record, sealed).await?,
        Change::UpdateServer { record, .. } => servers::update(conn, record, sealed).await?,
        Change::RemoveServer { id } => servers::remove(conn, id).await?,
        Change::RegisterCodeTool { record, .. } => code_tools::register(conn, record, sealed).await?,
        Change::UpdateCodeTool { record } => code_tools::update(conn, record).await?,
        Change::RecordInspection { tool } => {
            code_tools::require(conn, tool).await?;
            0
        }
        Change::RecordConnection { server, at, error } => {
            servers::record_connection(conn, server, *at, error.as_deref()).await?;
            0
        }
        Change::RecordDiscovery { server, listing } => tools::record_discovery(conn, server, listing).await?,
        Change::Classify { classification } => tools::classify(conn, classification).await?,
        Change::Declassify { server, tool } => tools::declassify(conn, server, tool).await?,
        Change::CreateGrant { grant } => access::create_grant(conn, grant).await?,
        Change::DeleteGrant { project, id } => access::delete_grant(conn, project, id).await?,
        Change::SetMembership { membership } => access::set_membership(conn, membership).await?,
        Change::CreateToken { record, hash } => {
            access::create_token(conn, record, hash).await?;
            0
        }
        Change::RevokeToken { id, project, at } => {
            access::revoke_token(conn, id, project.as_ref(), *at).await?;
            0
        }
        Change::CreateApproval { approval, limit } => approvals::create(conn, approval, *limit).await?,
        Change::DecideApproval { approval } => approvals::decide(conn, approval).await?,
        Change::BeginInvocation { intent } => invocations::begin(conn, intent).await?,
        Change::SettleInvocation { id, settlement } => {
            invocations::settle(conn, id, settlement).await?;
            0
        }
        Change::RecordInvocations { records } => {
            return Ok(touched(invocations::record(conn, records).await?));
        }
        Change::SettleOrphans { limit } => {
            let settled = invocations::settle_orphans(conn, *limit).await?;
            if !settled.is_empty() {
                audit::record(conn, commit.audit.iter()).await?;
            }
            for record in &settled {
                if let Some(settlement) = &record.settlement {
                    let entry = AuditEntry::of_invocation(&record.invocation, settlement);
                    audit::record(conn, [&entry]).await?;
                }
            }
            return Ok(touched(settled.len()));
        }
        Change::Prune(retention) => {
            let limit = i64::from(prune_limit);
            let mut removed = 0;
            if let Some(before) = retention.invocations_before {
                removed += invocations::prune(conn, before, limit).await?;
            }
            if let Some(before) = retention.approvals_before {
                removed += approvals::prune(conn, before, limit).await?;
            }
            if let Some(before) = retention.tokens_before {
                removed += access::prune_tokens(conn, before, limit).await?;
            }
            if let Some(before) = retention.audit_before {
                removed += audit::prune(conn, before, limit).await?;
            }
            if removed > 0 {
                audit::record(conn, commit.audit.iter()).await?;
            }
            return Ok(touched(removed));
        }
        _ => {
            return Err(CoreError::new(
                ErrorKind::Unsupported,
                "this store does not know the change; update it",
            )
            .into());
        }
    };
    Ok(Committed {
        revision: Revision(revision),
        affected: 0,
    })
}

fn touched(count: usize) -> Committed {
    Committed {
        revision: Revision(0),
        affected: u64::try_from(count).unwrap_or(u64::MAX),
    }
}
