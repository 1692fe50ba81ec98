use std::collections::BTreeSet;
use std::sync::Arc;

use crate::audit::{AuditAction, AuditQuery};
use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::id::{ProjectId, ServerId, TokenId};
use crate::invocation::InvocationOutcome;
use crate::page::{Page, PageRequest};
use crate::principal::{Scope, Scopes};
use crate::registry::{Change, Commit, Expect, InvocationsOf, Registry, ServerQuery};
use crate::token::{TokenRecord, token_hash};

/// Every list of the port.
#[derive(Clone, Copy, Debug)]
enum List {
    Servers,
    Tools,
    Grants,
    Tokens,
    Approvals,
    Invocations,
    Trail,
    TrailAfter,
}

impl List {
    const ALL: [Self; 8] = [
        Self::Servers,
        Self::Tools,
        Self::Grants,
        Self::Tokens,
        Self::Approvals,
        Self::Invocations,
        Self::Trail,
        Self::TrailAfter,
    ];
}

/// A registry with one server that the lists are about, named so that it stands amid the others.
struct Lists {
    registry: Arc<dyn Registry>,
    server: ServerId,
    start: crate::id::AuditId,
}

impl Lists {
    async fn new(registry: Arc<dyn Registry>) -> Self {
        let (record, _) = ready(&*registry, "m").await;
        let start = trail(&*registry).await[0].id.clone();
        Self {
            registry,
            server: record.id,
            start,
        }
    }

    async fn read(&self, list: List, page: &PageRequest) -> crate::Result<Page<String>> {
        let registry = &self.registry;
        let home = ProjectId::default();
        let query = AuditQuery {
            entity_type: Some("case".to_owned()),
            after: matches!(list, List::TrailAfter).then(|| self.start.clone()),
            ..AuditQuery::default()
        };
        Ok(match list {
            List::Servers => {
                let servers = registry.servers(&ServerQuery::default(), page).await?;
                servers.map(|server| server.name.to_string())
            }
            List::Tools => registry
                .tools(&self.server, page)
                .await?
                .map(|view| view.name().to_string()),
            List::Grants => registry
                .grants(&home, page)
                .await?
                .map(|grant| grant.id.to_string()),
            List::Tokens => registry
                .tokens(None, page)
                .await?
                .map(|token| token.id.to_string()),
            List::Approvals => {
                let approvals = registry.approvals(None, false, page).await?;
                approvals.map(|approval| approval.id.to_string())
            }
            List::Invocations => {
                let calls = registry
                    .invocations(&InvocationsOf::Server(self.server.clone()), page)
                    .await?;
                calls.map(|call| call.invocation.id.to_string())
            }
            List::Trail | List::TrailAfter => registry
                .audit(&query, page)
                .await?
                .map(|entry| entry.id.to_string()),
        })
    }

    async fn walk(&self, list: List, limit: u32) -> Vec<String> {
        walk(limit, async |page| self.read(list, &page).await.unwrap()).await
    }

    /// Adds one item that sorts by `key` where the list sorts by name.
    async fn add(&self, list: List, key: &str) {
        let registry = &*self.registry;
        let change = match list {
            List::Servers => Change::RegisterServer {
                record: Box::new(server(key)),
                secrets: Vec::new(),
            },
            List::Tools => {
                let read = walk(500, async |page| {
                    registry.tools(&self.server, &page).await.unwrap()
                });
                let mut tools: Vec<_> = read.await.into_iter().map(|view| view.descriptor).collect();
                tools.push(descriptor(key, "added"));
                Change::RecordDiscovery {
                    server: self.server.clone(),
                    listing: Box::new(listing(tools)),
                }
            }
            List::Grants => Change::CreateGrant {
                grant: grant(&self.server, &ProjectId::default(), key),
            },
            List::Tokens => {
                let record = TokenRecord {
                    id: TokenId::new(),
                    subject: subject(key),
                    project: None,
                    scopes: Scopes::NONE.with(Scope::Viewer),
                    label: String::new(),
                    created_by: subject("admin"),
                    created_at: now(),
                    expires_at: None,
                    revoked_at: None,
                };
                let hash = token_hash(record.id.as_str());
                Change::CreateToken { record, hash }
            }
            List::Approvals => Change::CreateApproval {
                approval: Box::new(approval(&self.server, key)),
                limit: 1_000,
            },
            List::Invocations => {
                let record = registry.server(&self.server).await.unwrap().unwrap();
                let call = settled(invocation(&record, key), InvocationOutcome::Ok);
                Change::RecordInvocations { records: vec![call] }
            }
            List::Trail | List::TrailAfter => {
                let touch = Change::RecordConnection {
                    server: self.server.clone(),
                    at: now(),
                    error: None,
                };
                let audit = entry(AuditAction::TestConnection, ("case", key)).into();
                let commit = Commit {
                    change: touch,
                    expect: Expect::nothing(),
                    audit,
                };
                registry.commit(commit).await.unwrap();
                return;
            }
        };
        commit(registry, change).await.unwrap();
    }

    async fn fill(&self, list: List, count: usize) {
        for index in 0..count {
            self.add(list, &format!("k{index:03}")).await;
        }
    }
}

pub(super) async fn pages_of_every_size_add_up(registry: Arc<dyn Registry>) {
    let lists = Lists::new(registry).await;
    for list in List::ALL {
        lists.fill(list, 12).await;
        let whole = lists.walk(list, 500).await;
        assert!(whole.len() >= 12, "{list:?} has {} items", whole.len());
        let distinct: BTreeSet<_> = whole.iter().collect();
        assert_eq!(distinct.len(), whole.len(), "{list:?} repeats an item");
        for limit in [1, 2, 5, 12, 13] {
            assert_eq!(
                lists.walk(list, limit).await,
                whole,
                "{list:?} in pages of {limit}"
            );
        }
        let sorted = |mut items: Vec<String>, newest_first: bool| {
            items.sort();
            if newest_first {
                items.reverse();
            }
            items
        };
        let newest_first = !matches!(
            list,
            List::Servers | List::Tools | List::Grants | List::TrailAfter
        );
        assert_eq!(
            whole,
            sorted(whole.clone(), newest_first),
            "{list:?} is out of order"
        );
    }
}

pub(super) async fn what_is_added_between_pages_loses_and_repeats_nothing(registry: Arc<dyn Registry>) {
    let lists = Lists::new(registry).await;
    for list in List::ALL {
        lists.fill(list, 9).await;
        let before = lists.walk(list, 500).await;
        let mut request = first(2);
        let mut seen = Vec::new();
        for round in 0..100 {
            let page = lists.read(list, &request).await.unwrap();
            seen.extend(page.items);
            let Some(cursor) = page.next else {
                break;
            };
            request.cursor = Some(cursor);
            if round < 5 {
                // One before and one after wherever the page ended.
                lists.add(list, &format!("a{round:03}")).await;
                lists.add(list, &format!("z{round:03}")).await;
            }
        }
        let distinct: BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "{list:?} repeats an item");
        let lost: Vec<_> = before.iter().filter(|item| !distinct.contains(item)).collect();
        assert!(lost.is_empty(), "{list:?} has lost {lost:?}");
    }
}

pub(super) async fn what_is_removed_between_pages_loses_nothing_else(registry: Arc<dyn Registry>) {
    for name in ["a", "b", "c", "d", "e"] {
        registered(&*registry, name).await;
    }
    let page = registry
        .servers(&ServerQuery::default(), &first(2))
        .await
        .unwrap();
    // The very item that the cursor stands on goes away.
    let id = page.items[1].id.clone();
    commit(&*registry, Change::RemoveServer { id }).await.unwrap();
    let request = PageRequest {
        limit: 10,
        cursor: page.next,
    };
    let rest = registry.servers(&ServerQuery::default(), &request).await.unwrap();
    let names: Vec<_> = rest.items.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["c", "d", "e"]);
    assert_eq!(rest.next, None);
}

pub(super) async fn limits_are_bounded(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let tools = (0..600)
        .map(|index| descriptor(&format!("t{index:03}"), "t"))
        .collect();
    discovered(&*registry, &record.id, tools).await;
    for (limit, length) in [(0, 1), (1, 1), (500, 500), (501, 500), (u32::MAX, 500)] {
        let page = registry.tools(&record.id, &first(limit)).await.unwrap();
        assert_eq!(page.items.len(), length, "limit {limit}");
        assert!(page.next.is_some());
    }
    assert_eq!(
        walk(500, async |page| registry.tools(&record.id, &page).await.unwrap())
            .await
            .len(),
        600
    );
}

pub(super) async fn a_foreign_cursor_is_invalid(registry: Arc<dyn Registry>) {
    let lists = Lists::new(registry).await;
    for list in List::ALL {
        lists.fill(list, 3).await;
        for cursor in ["", "no cursor!", "\u{0}", "' OR 1=1 --", &"x".repeat(10_000)] {
            let request = PageRequest {
                limit: 10,
                cursor: Some(cursor.to_owned()),
            };
            match lists.read(list, &request).await {
                Ok(page) => panic!("{list:?} took {cursor:.20?} as a cursor: {:?}", page.items),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{list:?}: {error}"),
            }
        }
    }
}
