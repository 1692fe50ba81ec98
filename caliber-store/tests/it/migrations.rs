//! The schema: made once, whoever starts first, and portable.

use std::time::Duration;

use caliber_core::approval::{Approval, ApprovalState, RequestedTool};
use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::digest::{ArgumentDigest, DescriptorDigest};
use caliber_core::grant::{Grant, GrantedTools, Grantee};
use caliber_core::id::{ApprovalId, GrantId};
use caliber_core::invocation::InvocationRecord;
use caliber_core::json::JsonText;
use caliber_core::page::PageRequest;
use caliber_core::principal::Surface;
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{Change, InvocationsOf, Registry};
use caliber_core::secret::{SecretReference, SecretSource};
use caliber_store::Store;
use diesel::sql_types::Text;
use diesel::{QueryableByName, RunQueryDsl};

use crate::support::{Home, commit, intent, invocation, now, registered, settlement, with_secret};

#[tokio::test(flavor = "multi_thread")]
async fn many_that_start_at_once_make_one_schema() {
    for _ in 0..5 {
        let home = Home::new();
        let openers: Vec<_> = (0..8)
            .map(|n| {
                let settings = home.settings();
                tokio::spawn(async move {
                    let store = Store::open(settings).await.unwrap();
                    registered(&store, &format!("server-{n}")).await;
                })
            })
            .collect();
        for opener in openers {
            opener.await.unwrap();
        }
        let store = home.open().await;
        let page = store
            .servers(&Default::default(), &PageRequest::first(50))
            .await
            .unwrap();
        assert_eq!(page.items.len(), 8);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_is_of_a_type_that_postgresql_has_too() {
    #[derive(QueryableByName)]
    struct Column {
        #[diesel(sql_type = Text)]
        place: String,
        #[diesel(sql_type = Text)]
        kind: String,
    }
    let home = Home::new();
    home.open().await.close().await;
    let columns: Vec<Column> = diesel::sql_query(
        "SELECT m.name || '.' || c.name AS place, c.type AS kind FROM sqlite_master m, pragma_table_info(m.name) c \
         WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%' AND m.name NOT LIKE '\\_\\_diesel%' ESCAPE '\\'",
    )
    .load(&mut home.connect())
    .unwrap();
    assert!(columns.len() > 100);
    for Column { place, kind } in columns {
        let portable =
            matches!(kind.as_str(), "TEXT" | "BIGINT" | "BLOB") || place == "audit_entries.sequence";
        assert!(portable, "{place} is {kind}");
    }
}

/// Two neighbouring versions share a store: what the newer one alone knows reads as unknown, and hides nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn words_of_a_newer_version_read_as_unknown() {
    let home = Home::new();
    let store = home.open().await;
    let record = registered(&store, "weather").await;
    let mut settled = settlement(now());
    settled.reason = Some(ReasonCode::Timeout);
    let records = vec![InvocationRecord {
        invocation: invocation(&record, &"echo".parse().unwrap()),
        settlement: Some(settled),
    }];
    commit(&store, Change::RecordInvocations { records })
        .await
        .unwrap();
    home.execute(
        "UPDATE audit_entries SET action = 'dance_mcp_server', surface = 'telepathy';
         UPDATE invocations SET reason = 'too_purple', surface = 'telepathy';",
    );
    let page = PageRequest::first(10);
    let entries = store.audit(&AuditQuery::default(), &page).await.unwrap().items;
    assert_eq!(entries.len(), 2);
    for entry in entries {
        assert_eq!(
            (entry.action, entry.surface),
            (AuditAction::Unknown, Surface::Unknown)
        );
    }
    let calls = store
        .invocations(&InvocationsOf::Server(record.id.clone()), &page)
        .await
        .unwrap()
        .items;
    assert_eq!(calls[0].invocation.surface, Surface::Unknown);
    let reason = calls[0].settlement.as_ref().unwrap().reason;
    assert_eq!(reason, Some(ReasonCode::Unknown));
}

/// What was stored before code tools came is there afterwards, secrets included.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_from_before_code_tools_keeps_what_it_holds() {
    const INITIAL: &str = include_str!("../../migrations/sqlite/2026-11-30-000000_initial/up.sql");
    const MADE_ANEW: [&str; 4] = ["secrets", "grants", "approvals", "invocations"];
    let home = Home::new();
    let store = home.open().await;
    let (record, secret) = with_secret(&store, "weather", "canary").await;
    let grant = Grant {
        id: GrantId::new(),
        project: record.project.clone(),
        grantee: Grantee::Subject("ada".parse().unwrap()),
        tools: GrantedTools::Server {
            server: record.id.clone(),
            tool: Some("echo".parse().unwrap()),
        },
        created_by: "root".parse().unwrap(),
        created_at: now(),
    };
    commit(&store, Change::CreateGrant { grant: grant.clone() })
        .await
        .unwrap();
    let approval = Approval {
        id: ApprovalId::new(),
        project: record.project.clone(),
        tool: RequestedTool::Server {
            server: record.id.clone(),
            tool: "echo".parse().unwrap(),
            descriptor_digest: DescriptorDigest::of(b"seen"),
        },
        arguments: JsonText::empty_object(),
        argument_digest: ArgumentDigest::of(b"{}"),
        requested_by: "ada".parse().unwrap(),
        requested_at: now(),
        expires_at: now() + Duration::from_secs(60),
        state: ApprovalState::Pending,
    };
    let request = Change::CreateApproval {
        approval: Box::new(approval.clone()),
        limit: 10,
    };
    commit(&store, request).await.unwrap();
    let call = invocation(&record, &"echo".parse().unwrap());
    commit(&store, intent(&call, Duration::from_secs(60)))
        .await
        .unwrap();
    store.close().await;

    // Back to the tables of the first schema, with the same rows.
    let mut back = String::from("PRAGMA foreign_keys = OFF;");
    for table in MADE_ANEW {
        back.push_str(&format!(
            "CREATE TABLE kept_{table} AS SELECT * FROM {table}; DROP TABLE {table};"
        ));
    }
    back.push_str("DROP TABLE code_tool_deployment_references; DROP TABLE code_tools;");
    let without_comments: String = INITIAL
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    for statement in without_comments.split(';') {
        let about = MADE_ANEW.iter().any(|table| {
            statement.contains(&format!("TABLE {table} (")) || statement.contains(&format!(" ON {table} ("))
        });
        if about {
            back.push_str(&format!("{statement};"));
        }
    }
    for table in MADE_ANEW {
        let columns = match table {
            "secrets" => "id, server_id, key_id, nonce, ciphertext",
            "grants" => "id, project, server_id, grantee_kind, grantee, tool, created_by, created_at",
            "approvals" => {
                "id, revision, project, server_id, tool, descriptor_digest, argument_digest, requested_by, \
                 requested_at, expires_at, state, decided_by, decided_at, note, invocation_id, arguments"
            }
            _ => {
                "id, started_at, subject, identity, surface, project, server_id, server_name, tool, \
                 descriptor_digest, policy_revision, side_effect_level, argument_digest, approval_id, break_glass, \
                 lease_owner, lease_until, outcome, reason, detail, ended_at, duration, result_bytes"
            }
        };
        back.push_str(&format!(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM kept_{table}; DROP TABLE kept_{table};"
        ));
    }
    back.push_str("DELETE FROM __diesel_schema_migrations WHERE version = '20261130160000';");
    home.execute(&back);

    let store = home.open().await;
    let page = PageRequest::first(10);
    let reference = SecretReference::Stored(secret);
    assert_eq!(store.resolve(&reference).await.unwrap().expose(), "canary");
    assert_eq!(store.grants(&record.project, &page).await.unwrap().items, [grant]);
    assert_eq!(store.approval(&approval.id).await.unwrap(), Some(approval));
    let calls = store
        .invocations(&InvocationsOf::Server(record.id.clone()), &page)
        .await
        .unwrap();
    assert_eq!(calls.items[0].invocation, call);
    // The rows belong to the server still.
    commit(&store, Change::RemoveServer { id: record.id })
        .await
        .unwrap();
    assert!(store.resolve(&reference).await.is_err());
    assert!(
        store
            .grants(&record.project, &page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(
        store
            .code_tools(&Default::default(), &page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
}
