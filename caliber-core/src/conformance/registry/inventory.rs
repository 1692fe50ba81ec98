use std::sync::Arc;
use std::time::Duration;

use crate::conformance::samples::*;
use crate::descriptor::Descriptor;
use crate::error::ErrorKind;
use crate::inventory::{ToolState, WithheldTool};
use crate::json::{JsonLimits, JsonText};
use crate::policy::Classification;
use crate::registry::{Change, Entity, Expect, Registry, Revision};
use crate::server::{Endpoint, RemoteEndpoint, ServerRecord};

pub(super) async fn a_discovery_replaces_the_inventory(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    assert!(registry.inventory(&record.id).await.unwrap().is_none());
    discovered(
        &*registry,
        &record.id,
        vec![descriptor("old", "o"), descriptor("echo", "one")],
    )
    .await;
    let mut second = listing(vec![descriptor("new", "n"), descriptor("echo", "one")]);
    let info = JsonText::parse(r#"{"name":"x", "version":"1"}"#, JsonLimits::RESULT).unwrap();
    second.server_info = Some(info.clone());
    second.instructions = Some("be kind".to_owned());
    second.withheld = vec![WithheldTool {
        name: "bad name".to_owned(),
        reason: "no valid name".to_owned(),
    }];
    let change = Change::RecordDiscovery {
        server: record.id.clone(),
        listing: Box::new(second.clone()),
    };
    assert_eq!(commit(&*registry, change).await.unwrap().revision, Revision(2));
    let stored = registry.inventory(&record.id).await.unwrap().unwrap();
    assert_eq!(stored.revision, Revision(2));
    assert_eq!(stored.discovered_at, second.discovered_at);
    assert_eq!(stored.protocol_version, second.protocol_version);
    assert_eq!(stored.server_info, Some(info));
    assert_eq!(stored.instructions.as_deref(), Some("be kind"));
    assert_eq!((stored.tool_count, &stored.withheld), (2, &second.withheld));
    let tools = registry.tools(&record.id, &first(10)).await.unwrap().items;
    let names: Vec<_> = tools.iter().map(|view| view.name().as_str()).collect();
    assert_eq!(names, ["echo", "new"], "tools are listed by name");
    let listed = registry
        .servers(&Default::default(), &first(10))
        .await
        .unwrap()
        .items;
    assert_eq!(listed[0].tool_count, 2);
    // A listing is a good connection.
    let read = registry.server(&record.id).await.unwrap().unwrap();
    assert_eq!(read.last_connected_at, Some(second.discovered_at));
    assert_eq!((read.connection_error, read.revision), (None, Revision(1)));
}

pub(super) async fn a_listing_that_nobody_asked_for_is_no_news_of_the_connection(
    registry: Arc<dyn Registry>,
) {
    let record = registered(&*registry, "weather").await;
    let failed = Change::RecordConnection {
        server: record.id.clone(),
        at: now(),
        error: Some("it was away".to_owned()),
    };
    commit(&*registry, failed).await.unwrap();
    let mut refresh = listing(vec![descriptor("echo", "one")]);
    refresh.asked_for = false;
    let change = |server: &crate::id::ServerId| Change::RecordDiscovery {
        server: server.clone(),
        listing: Box::new(refresh.clone()),
    };
    commit(&*registry, change(&record.id)).await.unwrap();
    let read = registry.server(&record.id).await.unwrap().unwrap();
    assert_eq!(
        (read.last_connected_at, read.connection_error.as_deref()),
        (None, Some("it was away"))
    );
    assert_eq!(
        registry.inventory(&record.id).await.unwrap().unwrap().tool_count,
        1
    );
    let absent = commit(&*registry, change(&crate::id::ServerId::new()))
        .await
        .unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

pub(super) async fn descriptors_come_back_byte_for_byte(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let text = "{ \"name\":\"echo\",\t\"zz\":1.10, \"aa\":123456789012345678901234567890, \
        \"description\":\"天気 \u{2028} \\u0000 \u{1f326}\", \
        \"inputSchema\":{\"type\":\"object\",\"$defs\":{\"b\":{},\"a\":{}}}, \
        \"outputSchema\":{\"type\":\"object\"}, \"_meta\":{\"k\":[1,2e400]}}";
    let odd = Descriptor::parse(text).unwrap();
    discovered(&*registry, &record.id, vec![odd.clone()]).await;
    let view = registry.tool(&record.id, odd.name()).await.unwrap().unwrap();
    assert_eq!(view.descriptor.text().as_str(), text);
    assert_eq!(view.descriptor, odd);
    let facts = registry
        .admission(&question(&record.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    let tool = facts.tool.unwrap();
    assert_eq!(tool.digest, odd.digest());
    assert_eq!(tool.input_schema, *odd.input_schema());
    assert_eq!(tool.output_schema.as_ref(), odd.output_schema());
    classified(&*registry, &record, &odd).await;
    let bound = bound(&*registry, &record).await;
    assert_eq!(bound.descriptor.as_str(), text);
}

pub(super) async fn a_discovery_never_classifies(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    for _ in 0..2 {
        discovered(&*registry, &record.id, vec![descriptor("echo", "one")]).await;
        let view = registry.tool(&record.id, &tool("echo")).await.unwrap().unwrap();
        assert_eq!(view.classification, None);
    }
}

pub(super) async fn another_descriptor_drifts_for_good(registry: Arc<dyn Registry>) {
    let (record, one) = ready(&*registry, "weather").await;
    let (other, _) = ready(&*registry, "other").await;
    discovered(&*registry, &record.id, vec![one.clone()]).await;
    assert_eq!(
        bound(&*registry, &record).await.drifted_at,
        None,
        "the same tool has drifted"
    );
    discovered(&*registry, &record.id, vec![descriptor("echo", "two")]).await;
    let drifted = bound(&*registry, &record).await;
    assert!(drifted.drifted_at.is_some());
    assert_eq!(
        drifted.descriptor_digest,
        one.digest(),
        "a discovery has changed what was decided"
    );
    // The change is taken back; the decision does not come back by itself.
    tokio::time::sleep(Duration::from_millis(2)).await;
    discovered(&*registry, &record.id, vec![one.clone()]).await;
    let back = bound(&*registry, &record).await;
    assert_eq!(
        back.drifted_at, drifted.drifted_at,
        "the drift was forgotten, or its time moved"
    );
    // A further change is no new beginning.
    tokio::time::sleep(Duration::from_millis(2)).await;
    discovered(&*registry, &record.id, vec![descriptor("echo", "three")]).await;
    assert_eq!(
        bound(&*registry, &record).await.drifted_at,
        drifted.drifted_at,
        "its time moved"
    );
    let facts = registry
        .admission(&question(&record.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(facts.classification, Some(back));
    assert_eq!(
        bound(&*registry, &other).await.drifted_at,
        None,
        "another server's tool has drifted"
    );
}

pub(super) async fn another_place_drifts_for_good(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    let (other, _) = ready(&*registry, "other").await;
    let mut prose = record.clone();
    prose.definition.description = "other words".to_owned();
    let update = |record: &ServerRecord| {
        let mut after = record.clone();
        after.updated_at = now();
        Change::UpdateServer {
            record: Box::new(after),
            secrets: Vec::new(),
        }
    };
    commit(&*registry, update(&prose)).await.unwrap();
    assert_eq!(
        bound(&*registry, &record).await.drifted_at,
        None,
        "prose has drifted a tool"
    );
    let mut moved = record.clone();
    moved.definition.endpoint = Endpoint::StreamableHttp(RemoteEndpoint {
        url: "http://127.0.0.1:2/elsewhere".to_owned(),
        headers: Default::default(),
    });
    commit(&*registry, update(&moved)).await.unwrap();
    let drifted = bound(&*registry, &record).await;
    assert!(drifted.drifted_at.is_some());
    tokio::time::sleep(Duration::from_millis(2)).await;
    commit(&*registry, update(&record)).await.unwrap();
    let back = bound(&*registry, &record).await;
    assert_eq!(
        back.drifted_at, drifted.drifted_at,
        "the drift was forgotten, or its time moved"
    );
    let view = registry.tool(&record.id, echo.name()).await.unwrap().unwrap();
    assert_eq!(view.state(&record.definition.fingerprint()), ToolState::Drifted);
    assert_eq!(
        bound(&*registry, &other).await.drifted_at,
        None,
        "another server's tool has drifted"
    );
}

pub(super) async fn a_tool_that_vanishes_does_not_drift(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    discovered(&*registry, &record.id, Vec::new()).await;
    assert!(registry.tool(&record.id, echo.name()).await.unwrap().is_none());
    let facts = registry
        .admission(&question(&record.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    assert!(facts.discovered && facts.tool.is_none() && facts.classification.is_some());
    discovered(&*registry, &record.id, vec![echo]).await;
    assert_eq!(bound(&*registry, &record).await.drifted_at, None);
}

pub(super) async fn a_refused_discovery_drifts_nothing(registry: Arc<dyn Registry>) {
    let (record, one) = ready(&*registry, "weather").await;
    let change = Change::RecordDiscovery {
        server: record.id.clone(),
        listing: Box::new(listing(vec![descriptor("echo", "two"), descriptor("more", "m")])),
    };
    let stale = Expect::revision(Entity::Server(record.id.clone()), Revision(9));
    let error = commit_expecting(&*registry, change, stale).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let view = registry.tool(&record.id, one.name()).await.unwrap().unwrap();
    assert_eq!(view.descriptor, one);
    assert_eq!(view.classification.unwrap().drifted_at, None);
    assert!(registry.tool(&record.id, &tool("more")).await.unwrap().is_none());
}

pub(super) async fn classifying_again_ends_the_drift(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let two = descriptor("echo", "two");
    discovered(&*registry, &record.id, vec![two.clone()]).await;
    classified(&*registry, &record, &two).await;
    let bound = bound(&*registry, &record).await;
    assert_eq!((bound.drifted_at, bound.descriptor_digest), (None, two.digest()));
    assert_eq!(bound.revision, Revision(2));
    // Everything that was decided is there.
    let expected = Classification {
        revision: Revision(2),
        classified_at: bound.classified_at,
        ..classification(&record, &two)
    };
    assert_eq!(bound, expected);
}

/// What was decided about the tool `echo`.
async fn bound(registry: &dyn Registry, server: &ServerRecord) -> Classification {
    let view = registry.tool(&server.id, &tool("echo")).await.unwrap();
    view.and_then(|view| view.classification)
        .expect("the tool is listed and classified")
}
