//! Two servers with a tool of the same name never meet.

use caliber::core::reason::ReasonCode;
use serde_json::json;

use crate::support::{Rig, Transport, Upstream, policy_for, text};

#[tokio::test(flavor = "multi_thread")]
async fn equal_names_of_two_servers_are_two_tools() {
    let rig = Rig::open().await;
    let start = |instance: &'static str| async move {
        // Each also says that it is the other.
        let settings = [
            "--tools",
            "search",
            "--instance",
            instance,
            "--server-name",
            "same-name",
        ];
        Upstream::start(Transport::Http, &settings).await
    };
    let (one, two) = (start("one").await, start("two").await);
    let first = rig.admit("first", one.endpoint()).await;
    let second = rig.register("second", two.endpoint()).await;
    second.discover().await.unwrap();

    let error = second
        .call(&rig.admin, "search", json!({ "value": 1 }))
        .await
        .unwrap_err();
    assert_eq!(
        error.reason(),
        Some(ReasonCode::Unclassified),
        "a decision about one is none about the other"
    );
    second.classify("search", policy_for("search")).await.unwrap();
    for _ in 0..10 {
        for (server, answer) in [(&first, "one:search"), (&second, "two:search")] {
            let outcome = server
                .call(&rig.admin, "search", json!({ "value": 1 }))
                .await
                .unwrap();
            assert_eq!(text(&outcome), answer);
        }
    }
    first.declassify("search").await.unwrap();
    let error = first
        .call(&rig.admin, "search", json!({ "value": 1 }))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::Unclassified));
    first.remove().await;
    let outcome = second
        .call(&rig.admin, "search", json!({ "value": 1 }))
        .await
        .unwrap();
    assert_eq!(
        text(&outcome),
        "two:search",
        "the removal of one leaves the other"
    );
    assert_eq!(one.records().executions_of("search"), 10);
    assert_eq!(two.records().executions_of("search"), 11);
}
