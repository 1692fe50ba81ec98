//! The schema: made once, whoever starts first, and portable.

use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::invocation::InvocationRecord;
use caliber_core::page::PageRequest;
use caliber_core::principal::Surface;
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{Change, InvocationsOf, Registry};
use caliber_store::Store;
use diesel::sql_types::Text;
use diesel::{QueryableByName, RunQueryDsl};

use crate::support::{Home, commit, invocation, now, registered, settlement};

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
