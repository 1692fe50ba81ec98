//! Whose session a call belongs to, and what becomes of sessions that end.

use serde_json::json;

use crate::support::{Rig, Transport, Upstream, structured};

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_has_a_sequence_of_its_own() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("counter", upstream.endpoint()).await;
        let mut seen = Vec::new();
        for caller in [&rig.ada, &rig.ada, &rig.ben, &rig.ada] {
            let outcome = server.call(caller, "count", json!({})).await.unwrap();
            seen.push(structured(&outcome)["count"].clone());
        }
        assert_eq!(seen, [1, 2, 1, 3], "{transport:?}");
    }
}
