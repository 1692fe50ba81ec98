use std::sync::Arc;

use crate::audit::{AuditAction, AuditEntries, AuditEntry, AuditQuery};
use crate::conformance::samples::*;
use crate::id::{AuditId, ProjectId, TokenId};
use crate::json::{JsonLimits, JsonText};
use crate::page::PageRequest;
use crate::principal::{Identity, Surface};
use crate::registry::{Change, Commit, Expect, Registry};
use crate::server::ServerRecord;

async fn write(registry: &dyn Registry, server: &ServerRecord, audit: impl Into<AuditEntries>) {
    let change = Change::RecordConnection {
        server: server.id.clone(),
        at: now(),
        error: None,
    };
    let commit = Commit {
        change,
        expect: Expect::nothing(),
        audit: audit.into(),
    };
    registry.commit(commit).await.unwrap();
}

pub(super) async fn an_entry_lands_with_its_change_and_reads_back_whole(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let details = "{ \"z\":1.0, \"a\":\"天気\u{2028}\" }";
    for identity in [
        Identity::Token(TokenId::new()),
        Identity::Header,
        Identity::Host,
        Identity::LocalAdministrator,
        Identity::System,
    ] {
        for place in [None, Some(project("other"))] {
            let written = AuditEntry {
                id: AuditId::new(),
                at: now(),
                actor: subject("ada@example.com"),
                identity: identity.clone(),
                surface: Surface::Playground,
                action: AuditAction::TestConnection,
                entity_type: "mcp_server".to_owned(),
                entity_id: record.id.to_string(),
                project: place,
                details: JsonText::parse(details, JsonLimits::RESULT).unwrap(),
            };
            write(&*registry, &record, written.clone()).await;
            assert_eq!(registry.audit_entry(&written.id).await.unwrap(), Some(written));
        }
    }
    assert_eq!(registry.audit_entry(&AuditId::new()).await.unwrap(), None);
}

pub(super) async fn several_entries_keep_their_order(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let entries: Vec<_> = (0..5)
        .map(|index| entry(AuditAction::TestConnection, ("case", &index.to_string())))
        .collect();
    let audit = AuditEntries::new(entries[0].clone(), entries[1..].to_vec());
    write(&*registry, &record, audit).await;
    let mut newest = trail(&*registry).await;
    newest.truncate(5);
    newest.reverse();
    assert_eq!(newest, entries);
}

pub(super) async fn the_trail_is_filtered(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let mut written = Vec::new();
    for (kind, id, place, action, actor) in [
        ("grant", "1", Some("one"), AuditAction::CreateGrant, "ada"),
        ("grant", "2", Some("two"), AuditAction::DeleteGrant, "ada"),
        ("token", "1", None, AuditAction::CreateToken, "bob"),
    ] {
        let mut entry = entry(action, (kind, id));
        entry.project = place.map(project);
        entry.actor = subject(actor);
        written.push(entry.clone());
        write(&*registry, &record, entry).await;
    }
    let ids = |wanted: &[usize]| -> Vec<AuditId> {
        wanted.iter().map(|index| written[*index].id.clone()).collect()
    };
    let found = async |query: AuditQuery| -> Vec<AuditId> {
        let page = registry.audit(&query, &PageRequest::default()).await.unwrap();
        page.items.into_iter().map(|entry| entry.id).collect()
    };
    let all = AuditQuery::default;
    let kind = |kind: &str| Some(kind.to_owned());
    assert_eq!(
        found(AuditQuery {
            entity_type: kind("grant"),
            ..all()
        })
        .await,
        ids(&[1, 0])
    );
    assert_eq!(
        found(AuditQuery {
            entity_id: kind("1"),
            ..all()
        })
        .await,
        ids(&[2, 0])
    );
    let both = AuditQuery {
        entity_type: kind("grant"),
        entity_id: kind("1"),
        ..all()
    };
    assert_eq!(found(both).await, ids(&[0]));
    let projects = |names: &[&str]| Some(names.iter().map(|name| project(name)).collect());
    assert_eq!(
        found(AuditQuery {
            projects: projects(&["one"]),
            ..all()
        })
        .await,
        ids(&[0])
    );
    assert_eq!(
        found(AuditQuery {
            projects: projects(&["two", "one"]),
            ..all()
        })
        .await,
        ids(&[1, 0])
    );
    assert!(
        found(AuditQuery {
            projects: projects(&[]),
            ..all()
        })
        .await
        .is_empty()
    );
    let action = Some(AuditAction::CreateToken);
    assert_eq!(found(AuditQuery { action, ..all() }).await, ids(&[2]));
    assert_eq!(
        found(AuditQuery {
            actor: Some(subject("ada")),
            ..all()
        })
        .await,
        ids(&[1, 0])
    );
    let home = AuditQuery {
        projects: Some(vec![ProjectId::default()]),
        ..all()
    };
    assert_eq!(
        found(home).await.len(),
        1,
        "only the registration is in the default project"
    );
}

/// Entries get their identifiers before they are committed, so they land in another order than they were made
/// in. Whoever follows the trail sees each of them all the same.
pub(super) async fn following_misses_nothing(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let made: Vec<_> = (0..6)
        .map(|index| entry(AuditAction::TestConnection, ("case", &index.to_string())))
        .collect();
    let mut last = trail(&*registry).await[0].id.clone();
    let mut seen = Vec::new();
    let landed = [1, 0, 3, 2, 5, 4];
    for pair in landed.chunks(2) {
        for index in pair {
            write(&*registry, &record, made[*index].clone()).await;
            let query = AuditQuery {
                after: Some(last.clone()),
                ..AuditQuery::default()
            };
            let new = walk(1, async |page| registry.audit(&query, &page).await.unwrap()).await;
            last = new.last().map_or(last, |entry| entry.id.clone());
            seen.extend(new.into_iter().map(|entry| entry.entity_id));
        }
    }
    let expected: Vec<_> = landed.iter().map(|index| index.to_string()).collect();
    assert_eq!(seen, expected);
    // Several at once come oldest first.
    let start = AuditQuery {
        after: Some(made[1].id.clone()),
        ..AuditQuery::default()
    };
    let rest = walk(2, async |page| registry.audit(&start, &page).await.unwrap()).await;
    let rest: Vec<_> = rest.into_iter().map(|entry| entry.entity_id).collect();
    assert_eq!(rest, expected[1..]);
}

/// What is committed later may have been made earlier: records of reading calls wait to be written together.
pub(super) async fn the_trail_is_read_by_time(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let start = now();
    // The order of commits; two entries are of one time.
    for (name, second) in [("d", 4), ("a", 1), ("c", 3), ("b", 2), ("e", 4), ("f", 6)] {
        let mut made = entry(AuditAction::TestConnection, ("by-time", name));
        made.at = start + std::time::Duration::from_secs(second);
        write(&*registry, &record, made).await;
    }
    let query = AuditQuery {
        entity_type: Some("by-time".to_owned()),
        ..AuditQuery::default()
    };
    for limit in [1, 2, 4, 50] {
        let read = walk(limit, async |page| registry.audit(&query, &page).await.unwrap()).await;
        let names: Vec<_> = read.iter().map(|entry| entry.entity_id.as_str()).collect();
        assert_eq!(names, ["f", "e", "d", "c", "b", "a"], "pages of {limit}");
    }
}
