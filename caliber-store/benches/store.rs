//! How long the store takes: the facts of one admission, and commits alone and together.
//!
//! `cargo bench -p caliber-store`; the figures depend on the disk that holds the folder for temporary files.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a measurement talks, and ends when something fails"
)]

use std::time::{Duration, Instant};

#[path = "../tests/it/support.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests use the rest")]
mod support;

use caliber_core::grant::{Grant, GrantedTools, Grantee};
use caliber_core::id::GrantId;
use caliber_core::page::PageRequest;
use caliber_core::registry::{AdmissionQuery, Change, Registry, ServerQuery};
use caliber_store::Store;
use support::{
    Home, classification, commit, descriptor, intent, invocation, listing, registered, registration, server,
};

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let home = Home::new();
        let store = home.open().await;
        admission(&store).await;
        discovery(&store).await;
        for callers in [1, 64] {
            commits(&store, callers).await;
        }
        list(&store).await;
    });
}

async fn admission(store: &Store) {
    let record = registered(store, "weather").await;
    let tools: Vec<_> = (0..100).map(|n| descriptor(&format!("tool{n}"))).collect();
    let (server, tool) = (record.id.clone(), tools[50].name().clone());
    let bound = classification(&record, &tools[50]);
    let listing = Box::new(listing(tools));
    let discovery = Change::RecordDiscovery { server, listing };
    commit(store, discovery).await.unwrap();
    let classification = Box::new(bound);
    commit(store, Change::Classify { classification }).await.unwrap();
    for n in 0..10 {
        let grant = Grant {
            id: GrantId::new(),
            project: record.project.clone(),
            grantee: Grantee::Subject(format!("subject-{n}").parse().unwrap()),
            tools: GrantedTools::Server {
                server: record.id.clone(),
                tool: None,
            },
            created_by: "ada".parse().unwrap(),
            created_at: support::now(),
        };
        commit(store, Change::CreateGrant { grant }).await.unwrap();
    }
    let query = AdmissionQuery {
        server: record.id.clone(),
        tool: tool.clone(),
        subject: "subject-3".parse().unwrap(),
        project: record.project.clone(),
        approval: None,
    };
    let facts = store.admission(&query).await.unwrap().unwrap();
    assert!(facts.tool.is_some() && facts.classification.is_some() && facts.grants.len() == 1);
    let mut times = Vec::new();
    for _ in 0..20_000 {
        let start = Instant::now();
        store.admission(&query).await.unwrap();
        times.push(start.elapsed());
    }
    report("admission, alone", times);

    let mut times = Vec::new();
    for _ in 0..500 {
        commit(
            store,
            intent(&invocation(&record, &tool), Duration::from_secs(60)),
        )
        .await
        .unwrap();
        let start = Instant::now();
        store.admission(&query).await.unwrap();
        times.push(start.elapsed());
    }
    report("admission, each after a commit", times);

    let start = Instant::now();
    let readers: Vec<_> = (0..16)
        .map(|_| {
            let (store, query) = (store.clone(), query.clone());
            tokio::spawn(async move {
                for _ in 0..2_000 {
                    store.admission(&query).await.unwrap();
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    let per_second = 32_000.0 / start.elapsed().as_secs_f64();
    println!("admission, 16 callers: {per_second:.0} a second");
}

async fn discovery(store: &Store) {
    let record = registered(store, "large").await;
    let tools: Vec<_> = (0..1_000).map(|n| descriptor(&format!("tool{n}"))).collect();
    let mut times = Vec::new();
    for _ in 0..20 {
        let (server, listing) = (record.id.clone(), Box::new(listing(tools.clone())));
        let start = Instant::now();
        commit(store, Change::RecordDiscovery { server, listing })
            .await
            .unwrap();
        times.push(start.elapsed());
    }
    report("a listing of 1,000 tools", times);
}

async fn commits(store: &Store, callers: usize) {
    let record = registered(store, &format!("callers-{callers}")).await;
    let tool: caliber_core::descriptor::ToolName = "echo".parse().unwrap();
    let each = 4_000 / callers.max(4);
    let before = store.statistics();
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (store, record, tool) = (store.clone(), record.clone(), tool.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                for _ in 0..each {
                    let change = intent(&invocation(&record, &tool), Duration::from_secs(60));
                    let start = Instant::now();
                    commit(&store, change).await.unwrap();
                    times.push(start.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let elapsed = start.elapsed().as_secs_f64();
    let after = store.statistics();
    let (commits, transactions) = (
        after.commits - before.commits,
        after.transactions - before.transactions,
    );
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let per_second = commits as f64 / elapsed;
    println!(
        "{callers} callers: {per_second:.0} commits a second, {commits} commits in {transactions} transactions"
    );
    report(&format!("a commit, {callers} callers"), times);
}

async fn list(store: &Store) {
    let records: Vec<_> = (0..10_000).map(|n| server(&format!("server-{n:05}"))).collect();
    for chunk in records.chunks(256) {
        let tasks: Vec<_> = chunk
            .iter()
            .map(|record| {
                let (store, change) = (store.clone(), registration(record));
                tokio::spawn(async move { commit(&store, change).await.unwrap() })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    let viewer = |admin| {
        Some(caliber_core::registry::Viewer {
            subject: "nobody".parse().unwrap(),
            project: "elsewhere".parse().unwrap(),
            admin,
        })
    };
    for (what, query) in [
        ("everything", ServerQuery::default()),
        (
            "a viewer who sees none",
            ServerQuery {
                viewer: viewer(false),
                ..ServerQuery::default()
            },
        ),
        (
            "a text that one holds",
            ServerQuery {
                text: Some("SERVER-09999".to_owned()),
                ..ServerQuery::default()
            },
        ),
    ] {
        let mut times = Vec::new();
        for page in [None, Some("servers.server-05000".to_owned())] {
            let page = PageRequest {
                limit: 50,
                cursor: page,
            };
            for _ in 0..100 {
                let start = Instant::now();
                store.servers(&query, &page).await.unwrap();
                times.push(start.elapsed());
            }
        }
        report(&format!("a page of 50 of 10,000 servers, {what}"), times);
    }
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: f64| {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "an index into what was measured"
        )]
        let index = ((times.len() - 1) as f64 * part) as usize;
        times[index]
    };
    println!("{what}: median {:.1?}, 99th of 100 {:.1?}", at(0.5), at(0.99));
}
