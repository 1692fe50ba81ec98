//! Everything that one admission is decided on.

use caliber_core::approval::Approval;
use caliber_core::id::ApprovalId;
use caliber_core::registry::{
    AdmissionQuery, Entity, Expect, Revision, RunAdmissionQuery, StoredFacts, StoredRunFacts,
};
use caliber_core::server::Visibility;
use diesel::{
    BoolExpressionMethods, ExpressionMethods, JoinOnDsl, NullableExpressionMethods, OptionalExtension,
    QueryDsl, SelectableHelper,
};
use diesel_async::RunQueryDsl;

use super::{Connection, access, approvals, code_tools, revisions, tools as listed_tools};
use crate::error::Result;
use crate::rows::{ApprovalRow, ClassificationRow, ServerRow, ToolFactsRow, unsigned};
use crate::schema::{classifications, inventories, servers, tools};

/// What one row of joined tables says of a call's target: the server, the revision of its inventory, the tool and
/// its classification.
type TargetRow = (
    ServerRow,
    Option<i64>,
    Option<ToolFactsRow>,
    Option<ClassificationRow>,
);

/// The facts, read at one moment: the caller holds a snapshot. Few statements, because every call waits for them.
pub(crate) async fn admission(conn: &mut Connection, query: &AdmissionQuery) -> Result<Option<StoredFacts>> {
    let AdmissionQuery { server: id, tool, .. } = query;
    let Some((server, inventory, facts, classification)) = target(conn, query).await? else {
        return Ok(None);
    };
    let server = server.record()?;
    let facts = facts.map(ToolFactsRow::facts).transpose()?;
    let classification = classification
        .map(ClassificationRow::classification)
        .transpose()?;
    let withheld = if inventory.is_some() && facts.is_none() {
        listed_tools::withheld(conn, id, tool).await?
    } else {
        None
    };
    let elsewhere = server.visibility == Visibility::Public && query.project != server.project;
    let other = if elsewhere {
        &query.project
    } else {
        &server.project
    };
    let grants = access::grants_for(conn, query, (&server.project, other)).await?;

    let discovered = inventory.is_some();
    let inventory = unsigned("inventories.revision", inventory.unwrap_or(0))?;
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
    let approval = presented(conn, query.approval.as_ref(), &mut expect).await?;
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

/// The facts of a run; likewise.
pub(crate) async fn run_admission(
    conn: &mut Connection,
    query: &RunAdmissionQuery,
) -> Result<Option<StoredRunFacts>> {
    let Some(record) = code_tools::code_tool(conn, &query.tool).await? else {
        return Ok(None);
    };
    let elsewhere = record.visibility == Visibility::Public && query.project != record.project;
    let other = if elsewhere {
        &query.project
    } else {
        &record.project
    };
    let family = (&record.project, &record.definition.family);
    let projects = (&record.project, other);
    let grants = access::grants_for_family(conn, family, &query.subject, projects).await?;
    let mut expect = vec![(Entity::CodeTool(query.tool.clone()), record.revision)];
    let own = Entity::Access(record.project.clone());
    for access in [Some(own), elsewhere.then(|| Entity::Access(other.clone()))]
        .into_iter()
        .flatten()
    {
        let revision = revisions::current(conn, &access).await?;
        expect.push((access, Revision(revision)));
    }
    let approval = presented(conn, query.approval.as_ref(), &mut expect).await?;
    Ok(Some(StoredRunFacts {
        record,
        grants,
        approval,
        expect: Expect(expect),
    }))
}

/// The approval that is presented, and its revision among the others.
async fn presented(
    conn: &mut Connection,
    id: Option<&ApprovalId>,
    expect: &mut Vec<(Entity, Revision)>,
) -> Result<Option<Approval>> {
    let Some(id) = id else {
        return Ok(None);
    };
    let row = approvals::row(conn, id).await?;
    let revision = row.as_ref().map_or(0, |row| row.revision);
    let revision = Revision(unsigned("approvals.revision", revision)?);
    expect.push((Entity::Approval(id.clone()), revision));
    row.map(ApprovalRow::approval).transpose()
}

async fn target(conn: &mut Connection, query: &AdmissionQuery) -> Result<Option<TargetRow>> {
    let listed = tools::server_id
        .eq(servers::id)
        .and(tools::name.eq(query.tool.to_string()));
    let bound = classifications::server_id
        .eq(servers::id)
        .and(classifications::tool.eq(query.tool.to_string()));
    Ok(servers::table
        .left_join(inventories::table)
        .left_join(tools::table.on(listed))
        .left_join(classifications::table.on(bound))
        .filter(servers::id.eq(query.server.as_str()))
        .select((
            ServerRow::as_select(),
            inventories::revision.nullable(),
            Option::<ToolFactsRow>::as_select(),
            Option::<ClassificationRow>::as_select(),
        ))
        .get_result(conn)
        .await
        .optional()?)
}
