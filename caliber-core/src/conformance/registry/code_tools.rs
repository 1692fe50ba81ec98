//! Versions of code tools.

use std::sync::Arc;
use std::time::Duration;

use crate::approval::{Approval, ApprovalState, RequestedTool};
use crate::audit::AuditAction;
use crate::code_tool::{CodeToolRecord, CodeToolStatus};
use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::grant::{Grant, GrantedTools, Grantee};
use crate::id::{ApprovalId, CodeToolId, InvocationId, ProjectId, SecretId};
use crate::invocation::{Invocation, InvocationOutcome, InvokedTool};
use crate::principal::Scope;
use crate::reason::ReasonCode;
use crate::registry::{
    Change, CodeToolQuery, Entity, Expect, InvocationsOf, NewSecret, Registry, Revision, RunAdmissionQuery,
    SecretOwner, StoredRunFacts, Viewer,
};
use crate::secret::{ConfigValue, SecretReference, SecretText};
use crate::server::Visibility;

fn registration(record: &CodeToolRecord) -> Change {
    Change::RegisterCodeTool {
        record: Box::new(record.clone()),
        secrets: Vec::new(),
    }
}

fn update(record: &CodeToolRecord) -> Change {
    Change::UpdateCodeTool {
        record: Box::new(record.clone()),
    }
}

async fn stored(registry: &dyn Registry, name: &str, version: &str) -> CodeToolRecord {
    let record = code_tool(name, version);
    commit(registry, registration(&record)).await.unwrap();
    record
}

fn text(record: &CodeToolRecord) -> String {
    serde_json::to_string(record).unwrap()
}

pub(super) async fn a_registered_version_reads_back_whole(registry: Arc<dyn Registry>) {
    let successor = stored(&*registry, "weather", "2").await;
    let mut record = code_tool("weather", "1.0.0-rc.1+build");
    let secret = SecretId::new();
    let reference = |reference| ConfigValue::Reference(reference);
    record.definition.secret_refs = [
        (
            "STORED".to_owned(),
            reference(SecretReference::Stored(secret.clone())),
        ),
        ("OUTSIDE".to_owned(), reference("env://OUTSIDE".parse().unwrap())),
    ]
    .into();
    record.definition.description = "天気 \u{1f324}".to_owned();
    record.definition.input_schema = Some(json(r#"{ "type": "object", "x": 1.0 }"#));
    record.definition.rate_limit_per_minute = Some(7);
    record.content_hash = record.computed_hash().unwrap();
    record.status = CodeToolStatus::Deprecated;
    record.deprecated_at = Some(now());
    record.successor = Some(successor.id);
    record.visibility = Visibility::User;
    let change = Change::RegisterCodeTool {
        record: Box::new(record.clone()),
        secrets: vec![NewSecret {
            id: secret,
            owner: SecretOwner::CodeTool(record.id.clone()),
            value: SecretText::new("canary"),
        }],
    };
    assert_eq!(commit(&*registry, change).await.unwrap().revision, Revision(1));
    let read = registry.code_tool(&record.id).await.unwrap().unwrap();
    assert_eq!(text(&read), text(&record));
    assert_eq!(read.computed_hash().unwrap(), record.content_hash);
    let query = CodeToolQuery::default();
    let listed = registry.code_tools(&query, &first(10)).await.unwrap().items;
    assert_eq!(listed[1], record.summary());
    assert_eq!(listed[1].version.to_string(), "1.0.0-rc.1+build");
    assert!(registry.code_tool(&CodeToolId::new()).await.unwrap().is_none());
}

pub(super) async fn a_version_is_taken_once_in_its_project(registry: Arc<dyn Registry>) {
    stored(&*registry, "weather", "1.0.0").await;
    let before = trail(&*registry).await.len();
    for same in ["1.0.0", "1.0.0+other", "1"] {
        let second = code_tool("weather", same);
        let outcome = commit(&*registry, registration(&second)).await;
        refused(outcome, ErrorKind::Conflict, Some(ReasonCode::VersionTaken));
        assert!(registry.code_tool(&second.id).await.unwrap().is_none());
    }
    assert_eq!(trail(&*registry).await.len(), before);
    // A hidden name in another project is in nobody's way.
    let mut elsewhere = code_tool("weather", "1.0.0");
    elsewhere.project = project("guest");
    commit(&*registry, registration(&elsewhere)).await.unwrap();
    stored(&*registry, "weather", "1.0.0-rc.1").await;
    stored(&*registry, "Weather", "1.0.0").await;
}

pub(super) async fn a_public_name_belongs_to_one_project(registry: Arc<dyn Registry>) {
    let public = |version: &str, place: &str| {
        let mut record = code_tool("weather", version);
        record.project = project(place);
        record.visibility = Visibility::Public;
        record
    };
    commit(&*registry, registration(&public("1", "home")))
        .await
        .unwrap();
    commit(&*registry, registration(&public("2", "home")))
        .await
        .unwrap();
    let outcome = commit(&*registry, registration(&public("3", "guest"))).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::NameTaken));
    let mut own = public("3", "guest");
    own.visibility = Visibility::Project;
    commit(&*registry, registration(&own)).await.unwrap();
    own.visibility = Visibility::Public;
    let outcome = commit(&*registry, update(&own)).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::NameTaken));
    let read = registry.code_tool(&own.id).await.unwrap().unwrap();
    assert_eq!(
        (read.visibility, read.revision),
        (Visibility::Project, Revision(1))
    );
}

pub(super) async fn an_update_keeps_what_a_version_does(registry: Arc<dyn Registry>) {
    let before = stored(&*registry, "weather", "1").await;
    let other = code_tool("other", "9");
    let mut change = other.clone();
    change.id = before.id.clone();
    change.definition.requires_approval = true;
    change.definition.description = "new".to_owned();
    change.status = CodeToolStatus::Archived;
    change.deprecated_at = Some(now());
    change.successor = Some(other.id.clone());
    change.owner = subject("grace");
    change.project = project("guest");
    change.visibility = Visibility::Public;
    assert_eq!(
        commit(&*registry, update(&change)).await.unwrap().revision,
        Revision(2)
    );
    let mut expected = before.clone();
    expected.revision = Revision(2);
    expected.definition.description = "new".to_owned();
    expected.status = CodeToolStatus::Archived;
    expected.deprecated_at = change.deprecated_at;
    expected.successor = change.successor.clone();
    expected.owner = change.owner.clone();
    expected.visibility = Visibility::Public;
    expected.updated_at = change.updated_at;
    let read = registry.code_tool(&before.id).await.unwrap().unwrap();
    assert_eq!(text(&read), text(&expected));
    let query = CodeToolQuery {
        text: Some("NEW".to_owned()),
        ..CodeToolQuery::default()
    };
    let found = registry.code_tools(&query, &first(10)).await.unwrap().items;
    assert_eq!(found, [expected.summary()]);
    refused(
        commit(&*registry, update(&other)).await,
        ErrorKind::NotFound,
        None,
    );
}

pub(super) async fn a_change_is_decided_on_a_revision(registry: Arc<dyn Registry>) {
    let record = stored(&*registry, "weather", "1").await;
    let entity = || Entity::CodeTool(record.id.clone());
    let stale = Expect::revision(entity(), Revision(2));
    let outcome = commit_expecting(&*registry, update(&record), stale).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::StaleRevision));
    let fresh = Expect::revision(entity(), Revision(1));
    commit_expecting(&*registry, update(&record), fresh)
        .await
        .unwrap();
    let absent = Expect::revision(Entity::CodeTool(CodeToolId::new()), Revision(0));
    // An inspection leaves its entry and moves nothing.
    let before = trail(&*registry).await.len();
    let look = |tool: &CodeToolId| Change::RecordInspection { tool: tool.clone() };
    let made = commit_expecting(&*registry, look(&record.id), absent)
        .await
        .unwrap();
    assert_eq!(made.revision, Revision(0));
    assert_eq!(trail(&*registry).await.len(), before + 1);
    let current = Expect::revision(entity(), Revision(2));
    commit_expecting(&*registry, update(&record), current)
        .await
        .unwrap();
    refused(
        commit(&*registry, look(&CodeToolId::new())).await,
        ErrorKind::NotFound,
        None,
    );
}

pub(super) async fn versions_are_listed_in_their_order(registry: Arc<dyn Registry>) {
    // By family, by project, the newest first; registered in another order.
    let expected = [
        ("alpha", "default", "10.0.0"),
        ("alpha", "default", "9.0.0"),
        ("alpha", "guest", "1.10.0"),
        ("alpha", "guest", "1.9.0"),
        ("alpha", "guest", "1.9.0-rc.2"),
        ("alpha", "guest", "1.9.0-rc.1"),
        ("beta", "default", "0.0.1"),
    ];
    for index in [3, 0, 6, 5, 2, 4, 1] {
        let (name, place, version) = expected[index];
        let mut record = code_tool(name, version);
        record.project = project(place);
        commit(&*registry, registration(&record)).await.unwrap();
    }
    let query = CodeToolQuery::default();
    for limit in 1..=8 {
        let read = async |page| registry.code_tools(&query, &page).await.unwrap();
        let shown: Vec<_> = walk(limit, read)
            .await
            .into_iter()
            .map(|tool| {
                (
                    tool.family.to_string(),
                    tool.project.to_string(),
                    tool.version.to_string(),
                )
            })
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, place, version)| ((*name).to_owned(), (*place).to_owned(), (*version).to_owned()))
            .collect();
        assert_eq!(shown, expected, "pages of {limit}");
    }
    let mut foreign = first(10);
    foreign.cursor = Some("elsewhere".to_owned());
    refused(
        registry.code_tools(&query, &foreign).await,
        ErrorKind::Invalid,
        None,
    );
}

pub(super) async fn versions_are_filtered_and_hidden(registry: Arc<dyn Registry>) {
    let make = async |name: &str, change: &dyn Fn(&mut CodeToolRecord)| {
        let mut record = code_tool(name, "1");
        change(&mut record);
        commit(&*registry, registration(&record)).await.unwrap();
    };
    make("own", &|record| record.visibility = Visibility::User).await;
    make("public", &|record| {
        record.visibility = Visibility::Public;
        record.project = project("guest");
        record.status = CodeToolStatus::Deprecated;
    })
    .await;
    make("shared", &|record| {
        record.definition.description = "50%_off".to_owned()
    })
    .await;
    make("theirs", &|record| record.project = project("guest")).await;
    let names = async |query: &CodeToolQuery| -> Vec<String> {
        let page = registry.code_tools(query, &first(10)).await.unwrap();
        page.items.iter().map(|tool| tool.family.to_string()).collect()
    };
    let viewer = |name: &str, place: &str, admin: bool| CodeToolQuery {
        viewer: Some(Viewer {
            subject: subject(name),
            project: project(place),
            admin,
        }),
        ..CodeToolQuery::default()
    };
    assert_eq!(
        names(&CodeToolQuery::default()).await,
        ["own", "public", "shared", "theirs"]
    );
    assert_eq!(
        names(&viewer("owner", "default", false)).await,
        ["own", "public", "shared"]
    );
    assert_eq!(
        names(&viewer("eve", "default", false)).await,
        ["public", "shared"]
    );
    assert_eq!(
        names(&viewer("eve", "default", true)).await,
        ["own", "public", "shared"]
    );
    assert_eq!(names(&viewer("eve", "guest", false)).await, ["public", "theirs"]);
    assert_eq!(names(&viewer("eve", "elsewhere", true)).await, ["public"]);
    let with = |change: &dyn Fn(&mut CodeToolQuery)| {
        let mut query = CodeToolQuery::default();
        change(&mut query);
        query
    };
    for (query, expected) in [
        (
            with(&|query| query.family = Some("shared".parse().unwrap())),
            vec!["shared"],
        ),
        (
            with(&|query| query.family = Some("share".parse().unwrap())),
            vec![],
        ),
        (
            with(&|query| query.project = Some(project("guest"))),
            vec!["public", "theirs"],
        ),
        (
            with(&|query| query.status = Some(CodeToolStatus::Deprecated)),
            vec!["public"],
        ),
        (
            with(&|query| query.visibility = Some(Visibility::User)),
            vec!["own"],
        ),
        (
            with(&|query| query.text = Some("0%_O".to_owned())),
            vec!["shared"],
        ),
        (
            with(&|query| query.text = Some("H".to_owned())),
            vec!["shared", "theirs"],
        ),
        (with(&|query| query.text = Some("x".repeat(5_000))), vec![]),
    ] {
        assert_eq!(names(&query).await, expected, "{query:?}");
    }
}

/// A grant for a family of the default project.
fn family_grant(place: &ProjectId, family: &str, grantee: Grantee) -> Grant {
    Grant {
        grantee,
        tools: GrantedTools::Family {
            project: ProjectId::default(),
            family: family.parse().unwrap(),
        },
        ..grant(&crate::id::ServerId::new(), place, "caller")
    }
}

fn run_question(tool: &CodeToolId) -> RunAdmissionQuery {
    RunAdmissionQuery {
        tool: tool.clone(),
        subject: subject("caller"),
        project: ProjectId::default(),
        approval: None,
    }
}

async fn facts(registry: &dyn Registry, query: &RunAdmissionQuery) -> StoredRunFacts {
    registry.run_admission(query).await.unwrap().unwrap()
}

async fn give(registry: &dyn Registry, grant: &Grant) {
    commit(registry, Change::CreateGrant { grant: grant.clone() })
        .await
        .unwrap();
}

pub(super) async fn a_family_is_granted_where_it_is(registry: Arc<dyn Registry>) {
    let home = ProjectId::default();
    let caller = || Grantee::Subject(subject("caller"));
    let absent = family_grant(&home, "weather", caller());
    let outcome = commit(
        &*registry,
        Change::CreateGrant {
            grant: absent.clone(),
        },
    )
    .await;
    refused(outcome, ErrorKind::NotFound, None);
    let record = stored(&*registry, "weather", "1").await;
    give(&*registry, &absent).await;
    let (server, _) = ready(&*registry, "weather").await;
    let of_server = grant(&server.id, &home, "caller");
    give(&*registry, &of_server).await;
    let listed = registry.grants(&home, &first(10)).await.unwrap().items;
    assert_eq!(listed, [absent.clone(), of_server.clone()]);
    // Neither opens the other.
    let run = facts(&*registry, &run_question(&record.id)).await;
    assert_eq!(run.grants, std::slice::from_ref(&absent));
    let call = registry
        .admission(&question(&server.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(call.grants, [of_server]);
    // The end of a server ends its grants only.
    commit(&*registry, Change::RemoveServer { id: server.id })
        .await
        .unwrap();
    assert_eq!(registry.grants(&home, &first(10)).await.unwrap().items, [absent]);
}

pub(super) async fn the_facts_of_a_run_are_complete(registry: Arc<dyn Registry>) {
    let (home, guest) = (ProjectId::default(), project("guest"));
    let mut record = stored(&*registry, "weather", "1").await;
    stored(&*registry, "forecast", "1").await;
    let caller = || Grantee::Subject(subject("caller"));
    let mine = family_grant(&home, "weather", caller());
    let by_scope = family_grant(&home, "weather", Grantee::Scope(Scope::Operator));
    let elsewhere = family_grant(&guest, "weather", caller());
    let other_family = family_grant(&home, "forecast", caller());
    let somebody = family_grant(&home, "weather", Grantee::Subject(subject("somebody")));
    for grant in [&mine, &by_scope, &elsewhere, &other_family, &somebody] {
        give(&*registry, grant).await;
    }
    let asked = requested(&record);
    consented(&*registry, &asked).await;
    let query = RunAdmissionQuery {
        project: guest.clone(),
        approval: Some(asked.id.clone()),
        ..run_question(&record.id)
    };
    let read = facts(&*registry, &query).await;
    assert_eq!(text(&read.record), text(&record));
    assert_eq!(
        read.grants,
        [mine.clone(), by_scope.clone()],
        "a shown version is granted by its project"
    );
    assert_eq!(
        read.approval.map(|approval| approval.tool),
        Some(asked.tool.clone())
    );
    let mut entities: Vec<_> = read.expect.0.iter().map(|(entity, _)| entity.clone()).collect();
    entities.sort();
    let mut expected = vec![
        Entity::CodeTool(record.id.clone()),
        Entity::Access(home.clone()),
        Entity::Approval(asked.id.clone()),
    ];
    expected.sort();
    assert_eq!(entities, expected);
    // A public version is also granted by the caller's project.
    record.visibility = Visibility::Public;
    commit(&*registry, update(&record)).await.unwrap();
    let read = facts(&*registry, &query).await;
    assert_eq!(read.grants, [mine, by_scope, elsewhere]);
    assert!(
        read.expect
            .0
            .iter()
            .any(|(entity, _)| *entity == Entity::Access(guest.clone()))
    );
    let absent = RunAdmissionQuery {
        approval: Some(ApprovalId::new()),
        ..run_question(&CodeToolId::new())
    };
    assert!(registry.run_admission(&absent).await.unwrap().is_none());
}

pub(super) async fn whatever_moves_makes_the_intent_of_a_run_stale(registry: Arc<dyn Registry>) {
    let record = stored(&*registry, "weather", "1").await;
    let home = ProjectId::default();
    let given = family_grant(&home, "weather", Grantee::Subject(subject("caller")));
    let changes = || {
        vec![
            update(&record),
            Change::CreateGrant { grant: given.clone() },
            Change::DeleteGrant {
                project: home.clone(),
                id: given.id.clone(),
            },
        ]
    };
    for change in changes() {
        let expect = facts(&*registry, &run_question(&record.id)).await.expect;
        let told = format!("{change:?}");
        commit(&*registry, change).await.unwrap();
        let begin = intent(&run(&record), Duration::from_secs(60));
        let outcome = commit_expecting(&*registry, begin, expect).await;
        assert_eq!(
            outcome.err().and_then(|error| error.reason()),
            Some(ReasonCode::StaleRevision),
            "{told}"
        );
    }
    let expect = facts(&*registry, &run_question(&record.id)).await.expect;
    stored(&*registry, "weather", "2").await;
    let begin = intent(&run(&record), Duration::from_secs(60));
    commit_expecting(&*registry, begin, expect).await.unwrap();
}

/// A request for consent to a run.
fn requested(record: &CodeToolRecord) -> Approval {
    Approval {
        tool: RequestedTool::Code {
            id: record.id.clone(),
            family: record.definition.family.clone(),
            version: record.definition.version.clone(),
            content_hash: record.content_hash,
        },
        ..approval(&crate::id::ServerId::new(), "echo")
    }
}

fn run(record: &CodeToolRecord) -> Invocation {
    Invocation {
        tool: InvokedTool::Code {
            id: record.id.clone(),
            family: record.definition.family.clone(),
            version: record.definition.version.clone(),
            content_hash: record.content_hash,
        },
        ..invocation(&server("nowhere"), "echo")
    }
}

pub(super) async fn runs_and_consents_to_them_read_back_whole(registry: Arc<dyn Registry>) {
    let (one, two) = (
        stored(&*registry, "weather", "1.0.0+linux").await,
        stored(&*registry, "weather", "2").await,
    );
    let asked = requested(&one);
    consented(&*registry, &asked).await;
    let read = registry.approval(&asked.id).await.unwrap().unwrap();
    assert_eq!(
        (&read.tool, &read.argument_digest),
        (&asked.tool, &asked.argument_digest)
    );
    let mut begun = run(&one);
    begun.approval = Some(asked.id.clone());
    commit(&*registry, intent(&begun, Duration::from_secs(60)))
        .await
        .unwrap();
    let spent = registry.approval(&asked.id).await.unwrap().unwrap();
    assert!(matches!(spent.state, ApprovalState::Spent { invocation, .. } if invocation == begun.id));
    let again = Invocation {
        id: InvocationId::new(),
        ..begun.clone()
    };
    let outcome = commit(&*registry, intent(&again, Duration::from_secs(60))).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::ApprovalInvalid));
    let recorded = settled(run(&two), InvocationOutcome::ToolError);
    let records = vec![recorded.clone()];
    commit(&*registry, Change::RecordInvocations { records })
        .await
        .unwrap();
    let (called, _) = ready(&*registry, "weather").await;
    let call = settled(invocation(&called, "echo"), InvocationOutcome::Ok);
    let records = vec![call.clone()];
    commit(&*registry, Change::RecordInvocations { records })
        .await
        .unwrap();
    let of = async |of: InvocationsOf| {
        let found = registry.invocations(&of, &first(10)).await.unwrap().items;
        found
            .into_iter()
            .map(|record| record.invocation)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(InvocationsOf::CodeTool(one.id)).await,
        std::slice::from_ref(&begun)
    );
    assert_eq!(
        of(InvocationsOf::CodeTool(two.id)).await,
        std::slice::from_ref(&recorded.invocation)
    );
    assert_eq!(
        of(InvocationsOf::Server(called.id)).await,
        std::slice::from_ref(&call.invocation)
    );
    assert_eq!(
        of(InvocationsOf::Everything).await,
        [call.invocation, recorded.invocation, begun]
    );
}

pub(super) async fn a_run_that_outlived_its_lease_is_settled(registry: Arc<dyn Registry>) {
    let record = stored(&*registry, "weather", "1").await;
    let begun = run(&record);
    commit(&*registry, intent(&begun, Duration::ZERO)).await.unwrap();
    eventually("the lease runs out", async || {
        let sweep = commit(&*registry, Change::SettleOrphans { limit: 10 }).await;
        sweep.unwrap().affected == 1
    })
    .await;
    let settlement = registry.invocation(&begun.id).await.unwrap().unwrap().settlement;
    assert_eq!(
        settlement.map(|settlement| settlement.outcome),
        Some(InvocationOutcome::OutcomeUnknown)
    );
    let entries = trail(&*registry).await;
    let entry = entries
        .iter()
        .find(|entry| entry.action == AuditAction::RunCodeTool)
        .unwrap();
    assert_eq!(
        (entry.entity_type.as_str(), entry.entity_id.as_str()),
        ("code_tool", record.id.as_str())
    );
}
