//! Everything that one admission is decided on.

use caliber_core::registry::{AdmissionQuery, Entity, Expect, Revision, StoredFacts};
use caliber_core::server::Visibility;

use super::{Connection, access, approvals, revisions, servers, tools};
use crate::error::Result;
use crate::rows::{ApprovalRow, unsigned};

/// The facts, read at one moment: the caller holds a snapshot.
pub(crate) async fn admission(conn: &mut Connection, query: &AdmissionQuery) -> Result<Option<StoredFacts>> {
    let AdmissionQuery { server: id, tool, .. } = query;
    let Some((server, inventory)) = servers::with_inventory_revision(conn, id).await? else {
        return Ok(None);
    };
    let discovered = inventory > 0;
    let facts = if discovered {
        tools::facts(conn, id, tool).await?
    } else {
        None
    };
    let withheld = if discovered && facts.is_none() {
        tools::withheld(conn, id, tool).await?
    } else {
        None
    };
    let classification = tools::classification(conn, id, tool).await?;
    let elsewhere = server.visibility == Visibility::Public && query.project != server.project;
    let other = if elsewhere {
        &query.project
    } else {
        &server.project
    };
    let grants = access::grants_for(conn, query, (&server.project, other)).await?;

    let classified = classification
        .as_ref()
        .map_or(Revision(0), |bound| bound.revision);
    let mut expect = vec![
        (Entity::Server(id.clone()), server.revision),
        (Entity::Inventory(id.clone()), Revision(inventory)),
        (Entity::Classification(id.clone(), tool.clone()), classified),
    ];
    let own = Entity::Access(server.project.clone());
    for access in [Some(own), elsewhere.then(|| Entity::Access(other.clone()))]
        .into_iter()
        .flatten()
    {
        let revision = revisions::current(conn, &access).await?;
        expect.push((access, Revision(revision)));
    }
    let mut approval = None;
    if let Some(presented) = &query.approval {
        let row = approvals::row(conn, presented).await?;
        let revision = row.as_ref().map_or(0, |row| row.revision);
        let revision = Revision(unsigned("approvals.revision", revision)?);
        expect.push((Entity::Approval(presented.clone()), revision));
        approval = row.map(ApprovalRow::approval).transpose()?;
    }
    Ok(Some(StoredFacts {
        server,
        discovered,
        tool: facts,
        withheld,
        classification,
        grants,
        approval,
        expect: Expect(expect),
    }))
}
