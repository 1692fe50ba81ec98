//! Long lists.

use caliber_core::page::PageRequest;
use caliber_core::registry::{Registry, ServerQuery, Viewer};
use caliber_core::server::Visibility;

use crate::support::{Home, commit_of, registration, server};

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_servers_are_paged_whole_and_in_order() {
    let home = Home::new();
    let store = home.open().await;
    let mut names = Vec::new();
    let mut tasks = Vec::new();
    for n in 0..10_000_u32 {
        // In an order that is not that of the names.
        let mut record = server(&format!("server-{:05}", n.wrapping_mul(7_919) % 10_000));
        record.visibility = match n % 10 {
            0 => Visibility::Public,
            1 => Visibility::User,
            _ => Visibility::Project,
        };
        names.push((record.definition.name.to_string(), record.visibility));
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            store.commit(commit_of(registration(&record))).await.unwrap();
        }));
        if tasks.len() == 512 {
            for task in tasks.drain(..) {
                task.await.unwrap();
            }
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    names.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(
        store.statistics().transactions < 2_000,
        "{:?}",
        store.statistics()
    );

    let stranger = Viewer {
        subject: "stranger".parse().unwrap(),
        project: "elsewhere".parse().unwrap(),
        admin: true,
    };
    for viewer in [None, Some(stranger)] {
        let wanted: Vec<_> = names
            .iter()
            .filter(|(_, visibility)| viewer.is_none() || *visibility == Visibility::Public)
            .map(|(name, _)| name.clone())
            .collect();
        let query = ServerQuery {
            viewer,
            ..ServerQuery::default()
        };
        let mut request = PageRequest::first(500);
        let mut found = Vec::new();
        loop {
            let page = store.servers(&query, &request).await.unwrap();
            found.extend(page.items.into_iter().map(|server| server.name.to_string()));
            match page.next {
                Some(next) => request.cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(found, wanted);
    }
    let text = |text: &str| ServerQuery {
        text: Some(text.to_owned()),
        ..ServerQuery::default()
    };
    for (query, count) in [
        (text("SERVER-0999"), 10),
        (text("the server server-01234"), 1),
        (text("127.0.0.1:1/SERVER-01234"), 1),
        (text("server_01234"), 0),
        (text("%"), 0),
        (text(&"server".repeat(100_000)), 0),
    ] {
        let page = store.servers(&query, &PageRequest::first(50)).await.unwrap();
        assert_eq!(page.items.len(), count, "{:?}", query.text.map(|text| text.len()));
    }
}
