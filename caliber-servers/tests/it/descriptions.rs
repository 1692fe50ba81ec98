//! Descriptions that the operator changes while the server runs.

use serde_json::{Value, json};

use crate::support::{Client, Sample};

fn descriptions(client: &mut dyn Client) -> Vec<Value> {
    let listed = client.result("tools/list", json!({}));
    listed["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["description"].clone())
        .collect()
}

#[test]
fn a_description_changes_without_a_restart() {
    let sample = Sample::new();
    let file = sample.folder.path().join("descriptions.json");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("{}");
    let arguments = ["--descriptions", file.to_str().unwrap()];
    let mut stdio = sample.stdio(&arguments).legacy();
    let mut http = sample.http(&arguments).modern();

    let built_in = descriptions(&mut stdio);
    assert_eq!(descriptions(&mut http), built_in);
    let schemas =
        |client: &mut dyn Client| client.result("tools/list", json!({}))["tools"][2]["inputSchema"].clone();
    let schema = schemas(&mut stdio);

    write(r#"{"run_query": "Reads orders. Ünïcode 🦀"}"#);
    for client in [&mut stdio as &mut dyn Client, &mut http] {
        let changed = descriptions(client);
        assert_eq!(changed[2], "Reads orders. Ünïcode 🦀");
        assert_eq!(changed[..2], built_in[..2], "the others keep their texts");
        assert_eq!(schemas(client), schema, "and nothing else changes");
    }

    // A broken file is told at every listing; the tools themselves go on.
    for broken in [r#"{"run_query": "#, r#"{"drop_table": "x"}"#, "[]"] {
        write(broken);
        let answer = stdio.request("tools/list", json!({}));
        assert_eq!(answer["error"]["code"], -32603, "{broken}: {answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .unwrap()
                .contains("descriptions file")
        );
        assert_eq!(stdio.query("SELECT 1")["rows"], json!([[1]]));
    }
    write("{}");
    assert_eq!(descriptions(&mut stdio), built_in);
}
