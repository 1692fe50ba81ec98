//! Schemas that reach out, explode, hang or mean nothing, and results that do not keep to theirs.

use std::collections::BTreeMap;
use std::time::Instant;

use caliber::ErrorKind;
use caliber::core::reason::ReasonCode;
use serde_json::{Value, json};

use super::stage::Stage;
use crate::support::{SECOND, Transport, isolated, structured, text};

/// S1, SH-19: a reference that leaves its schema or leads nowhere withholds its tool, and nothing is fetched; a tree
/// that refers to itself is served.
#[test]
fn references_stay_inside() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit(Transport::Http, &["--mode", "schema_refs"]).await;
        let withheld: BTreeMap<_, _> = attack.withheld().await.into_iter().collect();
        for name in [
            "http",
            "file",
            "relative",
            "missing_def",
            "missing_anchor",
            "id_base",
            "pointer_odd",
            "schema_url",
        ] {
            let reason = withheld.get(name).unwrap_or_else(|| panic!("{name} is offered"));
            assert!(
                !reason.is_empty() && !reason.contains("root:"),
                "{name}: {reason}"
            );
        }
        let names = attack.server.tool_names().await;
        for name in ["recursive", "dynamic"] {
            assert!(names.contains(&name.to_owned()), "{name}: {withheld:?}");
        }
        let tree = json!({ "value": { "next": { "next": { "items": [{}] } } } });
        stage.call(&attack, "recursive", tree).await.unwrap();
        let error = stage
            .call(&attack, "recursive", json!({ "value": { "next": 7 } }))
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::ArgumentsInvalid), "{error:?}");
        // Circles without a way out are withheld, or answered in time.
        for name in ["cycle", "self", "metaschema"] {
            if names.contains(&name.to_owned()) {
                let started = Instant::now();
                drop(stage.call(&attack, name, json!({ "value": {} })).await);
                assert!(started.elapsed() < 3 * SECOND, "{name}");
            }
        }
        let records = attack.upstream.records();
        assert_eq!(records.text("sentinel"), "", "a reference was followed");
        let executions = records.count("executions");
        attack.end(executions).await;
        stage.end().await;
    });
}

/// S2: a small schema that stands for much is withheld, or judges even a large argument in time; one such tool does
/// not cost the list.
#[test]
fn bombs_are_defused() {
    isolated(|| async {
        let stage = Stage::set().await;
        let large = |name: &str| match name {
            "unique_items" => Value::from((0..20_000).map(|number| json!([number])).collect::<Vec<_>>()),
            "contains" => Value::from(vec![json!([[1, 2], [3]]); 20_000]),
            "pattern_properties" => (0..20_000)
                .map(|number| (format!("key{number}"), json!(1)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            _ => json!("x".repeat(1_000_000)),
        };
        for (variant, withheld) in [
            ("any_of", true),
            ("all_of_doubling", true),
            ("any_of_doubling", true),
            ("one_of_doubling", true),
            ("properties", true),
            ("enum", true),
            ("depth", true),
            ("required", true),
            ("not_chain", true),
            ("pattern_properties", true),
            ("unevaluated", false),
            ("unique_items", false),
            ("contains", false),
        ] {
            let started = Instant::now();
            let attack = stage
                .admit(
                    Transport::Stdio,
                    &["--mode", "schema_bombs", "--variant", variant],
                )
                .await;
            // A process is started in this time, too.
            assert!(
                started.elapsed() < 4 * SECOND,
                "{variant}: {:?} for the list",
                started.elapsed()
            );
            let names = attack.server.tool_names().await;
            assert!(names.contains(&"echo".to_owned()), "one bad tool costs no other");
            let told = attack.withheld().await;
            if withheld {
                assert!(
                    told.len() == 1 && told[0].0 == variant && !told[0].1.is_empty(),
                    "{variant}: {told:?}"
                );
            }
            for name in names {
                let started = Instant::now();
                let answer = stage.call(&attack, &name, json!({ "value": large(&name) })).await;
                // Judged within the second that a validation may take, and the rest of the way.
                assert!(started.elapsed() < 4 * SECOND, "{name}: {:?}", started.elapsed());
                if let Err(error) = answer {
                    assert_eq!(error.kind(), ErrorKind::Denied, "{name}: {error:?}");
                }
            }
            let executions = attack.upstream.records().count("executions");
            attack.end(executions).await;
        }
        stage.end().await;
    });
}

/// S3: patterns run in linear time; what such an engine cannot do withholds the tool and says so.
#[test]
fn patterns_are_linear() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage
            .admit(Transport::Stdio, &["--mode", "schema_patterns"])
            .await;
        let withheld: BTreeMap<_, _> = attack.withheld().await.into_iter().collect();
        for name in [
            "look_ahead",
            "look_behind",
            "back_reference",
            "atomic",
            "huge_repeat",
            "very_large_bound",
            "invalid",
        ] {
            assert!(
                withheld.get(name).is_some_and(|reason| !reason.is_empty()),
                "{name}: {:?}",
                withheld.keys()
            );
        }
        let names = attack.server.tool_names().await;
        for name in ["nested_plus", "alternation", "overlap", "pattern_properties"] {
            assert!(names.contains(&name.to_owned()), "{name}: {withheld:?}");
            let hostile = format!("{}!", "a".repeat(50_000));
            let arguments = if name == "pattern_properties" {
                json!({ hostile: 1 })
            } else {
                json!({ "value": hostile })
            };
            let started = Instant::now();
            let answer = stage.call(&attack, name, arguments).await;
            assert!(started.elapsed() < 2 * SECOND, "{name}: {:?}", started.elapsed());
            match answer {
                Ok(_) => assert_eq!(
                    name, "pattern_properties",
                    "{name} fits nothing with an exclamation mark"
                ),
                Err(error) => assert!(
                    matches!(
                        error.reason(),
                        Some(ReasonCode::ArgumentsInvalid | ReasonCode::ArgumentsUnchecked)
                    ),
                    "{name}: {error:?}"
                ),
            }
        }
        let fits = stage
            .call(&attack, "nested_plus", json!({ "value": "aaaa" }))
            .await
            .unwrap();
        assert_eq!(text(&fits), "aaaa");
        let executions = attack.upstream.records().count("executions");
        attack.end(executions).await;
        stage.end().await;
    });
}

/// S4: 2020-12 where no dialect is named, the named one where it is known, a reason where it is not; `format` is an
/// annotation in every dialect, and unknown keywords are passed over.
#[test]
fn dialects_are_what_they_say() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage
            .admit(Transport::Stdio, &["--mode", "schema_dialects"])
            .await;
        let withheld: BTreeMap<_, _> = attack.withheld().await.into_iter().collect();
        for name in ["unknown_dialect", "dialect_number", "tuple_items_2020"] {
            assert!(withheld.contains_key(name), "{name}: {:?}", withheld.keys());
        }
        assert_eq!(withheld.len(), 3, "{withheld:?}");
        let mut executions = 0;
        for (tool, value, fits) in [
            ("draft_2020_12", json!("x"), true),
            ("draft_2019_09", json!("x"), true),
            ("draft_07", json!("x"), true),
            ("draft_06", json!("x"), true),
            ("draft_04", json!("x"), true),
            ("draft_07", json!(7), false),
            ("format_email", json!("x"), true),
            ("format_unknown", json!("x"), true),
            ("nullable", json!("x"), true),
            ("nullable", json!(null), false),
            ("type_list", json!(null), true),
            ("prefix_items", json!(["a", 1]), true),
            ("prefix_items", json!([1, "a"]), false),
            ("prefix_items", json!(["a", 1, 2]), false),
            ("tuple_items", json!(["a", 1]), true),
            ("tuple_items", json!(["a", "b"]), false),
            ("exclusive_minimum_04", json!(1), false),
            ("exclusive_minimum_04", json!(2), true),
            ("definitions", json!(7), false),
            ("root_ref", json!(7), false),
            ("root_ref", json!("x"), true),
            ("no_type", json!(7), false),
            ("empty", json!(7), true),
            ("unknown_keywords", json!("x"), true),
        ] {
            match stage.call(&attack, tool, json!({ "value": value })).await {
                Ok(_) => {
                    assert!(fits, "{tool} takes {value}");
                    executions += 1;
                }
                Err(error) => {
                    assert!(!fits, "{tool} {value}: {error:?}");
                    assert_eq!(
                        error.reason(),
                        Some(ReasonCode::ArgumentsInvalid),
                        "{tool} {value}: {error:?}"
                    );
                }
            }
        }
        attack.end(executions).await;
        stage.end().await;
    });
}

/// S5, SH-14: one broken tool is withheld with its reason, and the other nine are served.
#[test]
fn one_broken_schema_costs_one_tool() {
    isolated(|| async {
        let stage = Stage::set().await;
        for variant in [
            "output_ref",
            "input_ref",
            "output_text",
            "no_schema",
            "no_name",
            "name_number",
            "name_null",
            "description_number",
            "tool_text",
            "tool_null",
            "lone_surrogate",
            "deep",
        ] {
            let settings = ["--mode", "one_broken", "--variant", variant, "--count", "10"];
            let attack = stage.admit(Transport::Stdio, &settings).await;
            let names = attack.server.tool_names().await;
            assert_eq!(names.len(), 9, "{variant}: {names:?}");
            let withheld = attack.withheld().await;
            assert!(
                withheld.len() == 1 && !withheld[0].1.is_empty(),
                "{variant}: {withheld:?}"
            );
            let outcome = stage
                .call(&attack, "sound_0", json!({ "value": "served" }))
                .await
                .unwrap();
            assert_eq!(text(&outcome), "served", "{variant}");
            attack.end(1).await;
        }
        let attack = stage.admit(Transport::Stdio, &["--mode", "broken_schemas"]).await;
        let names = attack.server.tool_names().await;
        let withheld: Vec<_> = attack
            .withheld()
            .await
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        for name in [
            "type_unknown",
            "type_number",
            "text",
            "null",
            "array",
            "number",
            "false",
            "properties_array",
            "required_text",
            "minimum_text",
            "ref_number",
        ] {
            assert!(
                withheld.contains(&name.to_owned()),
                "{name} is offered; withheld are {withheld:?}"
            );
        }
        assert!(names.contains(&"echo".to_owned()));
        attack.end(0).await;
        stage.end().await;
    });
}

/// S6, SH-15: a result that promises structure has it, and passes unchanged; one that breaks its promise is an error
/// that says so; what a tool says of its own failure is not judged by it.
#[test]
fn output_schemas_are_kept() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in [Transport::Stdio, Transport::Http] {
            let attack = stage.admit_shared(transport, &[]).await;
            let mut executions = 1;
            for (variant, passes) in [
                ("matching", true),
                ("error_other_shape", true),
                ("error_without", true),
                ("missing", false),
                ("null", false),
                ("missing_field", false),
                ("wrong_type", false),
                ("array", false),
                ("scalar", false),
                ("in_text_only", false),
            ] {
                attack.turn(&format!("mode=output&variant={variant}")).await;
                let answer = stage
                    .call(&attack, "structured", json!({ "count": 3, "label": "three" }))
                    .await;
                executions += 1;
                match answer {
                    Ok(outcome) => {
                        assert!(passes, "{transport:?} {variant} was taken");
                        assert_eq!(outcome.answer.is_error, variant.starts_with("error"), "{variant}");
                        let expected = match variant {
                            "matching" => json!({ "count": 3, "label": "three" }),
                            "error_other_shape" => json!({ "reason": "other shape" }),
                            _ => Value::Null,
                        };
                        assert_eq!(structured(&outcome), expected, "{variant}");
                        if variant != "matching" {
                            assert_eq!(text(&outcome), "the real error text");
                        }
                    }
                    Err(error) => {
                        assert!(!passes, "{transport:?} {variant}: {error:?}");
                        assert_eq!(
                            error.reason(),
                            Some(ReasonCode::ResultInvalid),
                            "{variant}: {error:?}"
                        );
                    }
                }
            }
            attack.end(executions).await;
        }
        stage.end().await;
    });
}
