//! JSON Schema within bounds: which schemas are accepted, and whether a value fits.
//!
//! Dialects: what `$schema` names (drafts 4, 6, 7, 2019-09, 2020-12), and 2020-12 when it names none. `format` is
//! an annotation in every dialect, as 2020-12 has it. Patterns run on a linear engine; look-around and back
//! references are refused when the schema is read. References outside the schema are refused, never fetched.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jsonschema::{PatternOptions, Validator};
use lru::LruCache;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::digest::DescriptorDigest;
use crate::error::{Error, ErrorKind, Result};
use crate::json::JsonText;
use crate::text::escaped;

/// The most subschemas that a schema may stand for once its references are followed.
///
/// A schema of a few hundred bytes can stand for millions through references that double; this bounds the
/// work of one validation, which cannot be interrupted.
pub const EXPANDED_SUBSCHEMAS: u64 = 10_000;
/// The deepest nesting of subschemas along references.
pub const SCHEMA_DEPTH: usize = 64;
/// The most patterns of a schema: `pattern`, and the keys of `patternProperties`. Each is compiled into a program of
/// up to 1 MiB, at every listing, which cannot be interrupted either.
pub const SCHEMA_PATTERNS: usize = 100;
/// The longest wait for one validation. The work itself is bounded by [`EXPANDED_SUBSCHEMAS`].
pub const VALIDATION_TIME: Duration = Duration::from_secs(1);
/// The longest text about what does not fit, in characters.
const PROBLEM_LENGTH: usize = 300;
/// Compiled schemas that are kept.
const CACHE_ENTRIES: usize = 1_024;

/// Compiles schemas and keeps the compiled ones by digest.
pub struct SchemaChecker {
    compiled: Mutex<LruCache<(DescriptorDigest, Part), Arc<Validator>>>,
    running: Arc<Semaphore>,
}

/// Which schema of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The schema of the arguments.
    Input,
    /// The schema of the structured result.
    Output,
}

/// Whether a value fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It does.
    Fits,
    /// It does not.
    Unfit(String),
    /// The check went over a bound.
    Unchecked(String),
}

impl std::fmt::Debug for SchemaChecker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SchemaChecker")
    }
}

impl Default for SchemaChecker {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, NonZeroUsize::get);
        Self {
            compiled: Mutex::new(LruCache::new(
                NonZeroUsize::new(CACHE_ENTRIES).unwrap_or(NonZeroUsize::MIN),
            )),
            running: Arc::new(Semaphore::new(2 * cores)),
        }
    }
}

impl SchemaChecker {
    /// Whether `value` fits the schema. `digest` and `part` name the schema for reuse.
    ///
    /// Cancel-safe; a large value is checked off the runtime's threads.
    pub async fn check(
        &self,
        digest: DescriptorDigest,
        part: Part,
        schema: &JsonText,
        value: &JsonText,
    ) -> Fit {
        // Small values are checked in place: handing them over costs more than checking them.
        const SMALL: usize = 16 << 10;
        let cached = self
            .compiled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(digest, part))
            .cloned();
        if let Some(validator) = &cached
            && value.as_str().len() <= SMALL
        {
            return fit(validator, value);
        }
        let Ok(Ok(running)) =
            tokio::time::timeout(VALIDATION_TIME, self.running.clone().acquire_owned()).await
        else {
            return Fit::Unchecked("too many schema checks are under way; try again".to_owned());
        };
        let (schema, owned) = (schema.clone(), value.clone());
        let work = tokio::task::spawn_blocking(move || {
            let _running = running;
            let validator = match cached {
                Some(validator) => validator,
                None => Arc::new(compile(&schema)?),
            };
            let fit = fit(&validator, &owned);
            Ok::<_, Error>((validator, fit))
        });
        match tokio::time::timeout(VALIDATION_TIME, work).await {
            Ok(Ok(Ok((validator, fit)))) => {
                self.compiled
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .put((digest, part), validator);
                fit
            }
            Ok(Ok(Err(error))) => Fit::Unchecked(error.to_string()),
            Ok(Err(_)) => Fit::Unchecked("the schema check failed".to_owned()),
            Err(_) => Fit::Unchecked(format!(
                "the schema check took longer than {} ms",
                VALIDATION_TIME.as_millis()
            )),
        }
    }
}

/// Checks that a schema can be used, within bounds.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for what is no schema, an outside or dangling reference, or an unsupported pattern;
/// [`ErrorKind::TooLarge`] for a schema that stands for too much.
pub fn accept(schema: &JsonText) -> Result<()> {
    compile(schema).map(drop)
}

fn compile(schema: &JsonText) -> Result<Validator> {
    let value: Value = schema.read()?;
    check_references(&value)?;
    if count_patterns(&value) > SCHEMA_PATTERNS {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("the schema has more than {SCHEMA_PATTERNS} patterns"),
        ));
    }
    let mut options = jsonschema::options()
        .with_pattern_options(
            PatternOptions::regex()
                .size_limit(1 << 20)
                .dfa_size_limit(1 << 20),
        )
        .should_validate_formats(false);
    if value.get("$schema").is_none() {
        options = options.with_draft(jsonschema::Draft::Draft202012);
    }
    options.build(&value).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "the schema cannot be used: {}",
                escaped(&error.to_string(), PROBLEM_LENGTH)
            ),
        )
    })
}

/// How many patterns would be compiled, at most: data that looks like one counts, too.
fn count_patterns(value: &Value) -> usize {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| {
                let own = match (key.as_str(), member) {
                    ("pattern", Value::String(_)) => 1,
                    ("patternProperties", Value::Object(patterns)) => patterns.len(),
                    _ => 0,
                };
                own + count_patterns(member)
            })
            .sum(),
        Value::Array(items) => items.iter().map(count_patterns).sum(),
        _ => 0,
    }
}

fn fit(validator: &Validator, value: &JsonText) -> Fit {
    let value: Value = match value.read() {
        Ok(value) => value,
        Err(error) => return Fit::Unchecked(error.to_string()),
    };
    match validator.validate(&value) {
        Ok(()) => Fit::Fits,
        // Masked: arguments may be secret, and the text goes into the ledger.
        Err(error) => {
            let place = error.instance_path().to_string();
            let problem = escaped(&error.masked_with("the value").to_string(), PROBLEM_LENGTH);
            Fit::Unfit(if place.is_empty() {
                problem
            } else {
                format!("{}: {problem}", escaped(&place, 120))
            })
        }
    }
}

/// Refuses outside and dangling references, and counts what the schema stands for once they are followed.
fn check_references(root: &Value) -> Result<()> {
    let mut anchors = HashMap::new();
    collect_anchors(root, &mut anchors);
    let mut counter = Counter {
        root,
        anchors,
        known: HashMap::new(),
        open: HashSet::new(),
    };
    let total = counter.count(root, 0)?;
    if total > EXPANDED_SUBSCHEMAS {
        return Err(too_large());
    }
    Ok(())
}

fn too_large() -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!(
            "the schema stands for more than {EXPANDED_SUBSCHEMAS} subschemas or nests deeper than {SCHEMA_DEPTH}"
        ),
    )
}

fn collect_anchors<'a>(value: &'a Value, anchors: &mut HashMap<&'a str, &'a Value>) {
    match value {
        Value::Object(members) => {
            for key in ["$anchor", "$dynamicAnchor", "$id", "id"] {
                if let Some(Value::String(name)) = members.get(key) {
                    anchors.insert(name.trim_start_matches('#'), value);
                }
            }
            members
                .values()
                .for_each(|member| collect_anchors(member, anchors));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_anchors(item, anchors)),
        _ => {}
    }
}

struct Counter<'a> {
    root: &'a Value,
    anchors: HashMap<&'a str, &'a Value>,
    known: HashMap<*const Value, u64>,
    open: HashSet<*const Value>,
}

impl<'a> Counter<'a> {
    fn count(&mut self, value: &'a Value, depth: usize) -> Result<u64> {
        if depth > 4 * SCHEMA_DEPTH {
            return Err(too_large());
        }
        match value {
            Value::Object(members) => {
                let identity: *const Value = value;
                if let Some(known) = self.known.get(&identity) {
                    return Ok(*known);
                }
                // A loop adds nothing by itself: it goes on only as far as the value nests, which is bounded.
                if !self.open.insert(identity) {
                    return Ok(1);
                }
                let mut total: u64 = 1;
                for (key, member) in members {
                    total = total.saturating_add(self.count(member, depth + 1)?);
                    if matches!(key.as_str(), "$ref" | "$dynamicRef" | "$recursiveRef")
                        && let Value::String(reference) = member
                    {
                        let target = self.resolve(reference)?;
                        total = total.saturating_add(self.count(target, depth + 1)?);
                    }
                    if total > EXPANDED_SUBSCHEMAS {
                        return Err(too_large());
                    }
                }
                self.open.remove(&identity);
                self.known.insert(identity, total);
                Ok(total)
            }
            Value::Array(items) => items.iter().try_fold(0u64, |total, item| {
                Ok(total.saturating_add(self.count(item, depth + 1)?))
            }),
            _ => Ok(0),
        }
    }

    fn resolve(&self, reference: &str) -> Result<&'a Value> {
        let problem = |text: &str| {
            Error::new(
                ErrorKind::Invalid,
                format!("the reference {} {text}", crate::text::shown(reference)),
            )
        };
        if let Some(target) = self.anchors.get(reference.trim_start_matches('#')) {
            return Ok(target);
        }
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err(problem("leaves the schema; such references are not followed"));
        };
        self.root
            .pointer(&percent_decoded(fragment))
            .ok_or_else(|| problem("leads nowhere"))
    }
}

fn percent_decoded(fragment: &str) -> String {
    url::form_urlencoded::parse(fragment.replace('+', "%2B").as_bytes())
        .next()
        .map_or_else(String::new, |(key, _)| key.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> JsonText {
        JsonText::parse(json, crate::json::JsonLimits::RESULT).unwrap()
    }

    async fn check(schema: &str, value: &str) -> Fit {
        let schema = text(schema);
        let digest = DescriptorDigest::of(schema.as_str().as_bytes());
        SchemaChecker::default()
            .check(digest, Part::Input, &schema, &text(value))
            .await
    }

    #[tokio::test]
    async fn values_are_judged_and_not_repeated() {
        let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
        assert_eq!(check(schema, r#"{"n":1}"#).await, Fit::Fits);
        let Fit::Unfit(problem) = check(schema, r#"{"n":"canary"}"#).await else {
            panic!("it fits")
        };
        assert!(
            problem.starts_with("/n:") && !problem.contains("canary"),
            "{problem}"
        );
    }

    #[test]
    fn patterns_are_counted() {
        let with = |count: usize| {
            let keys: Vec<_> = (0..count)
                .map(|number| format!(r#""^x{number}$":{{}}"#))
                .collect();
            let keyed = format!(r#"{{"patternProperties":{{{}}}}}"#, keys.join(","));
            let listed = format!(
                r#"{{"allOf":[{}]}}"#,
                vec![r#"{"pattern":"^a$"}"#; count].join(",")
            );
            [keyed, listed].map(|schema| accept(&text(&schema)).map_err(|error| error.kind()))
        };
        assert_eq!(with(SCHEMA_PATTERNS), [Ok(()), Ok(())]);
        assert_eq!(with(SCHEMA_PATTERNS + 1), [Err(ErrorKind::TooLarge); 2]);
        // A property of that name is none.
        assert!(accept(&text(r#"{"properties":{"pattern":{"type":"string"}}}"#)).is_ok());
    }

    #[test]
    fn references_stay_inside() {
        for schema in [
            r#"{"$ref":"http://127.0.0.1:1/x"}"#,
            r#"{"$ref":"file:///etc/passwd"}"#,
            r##"{"$ref":"#/$defs/missing"}"##,
            r#"{"properties":{"a":{"$ref":"other.json"}}}"#,
        ] {
            assert_eq!(
                accept(&text(schema)).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{schema}"
            );
        }
        accept(&text(
            r##"{"$defs":{"a/b":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/a~1b"}}}"##,
        ))
        .unwrap();
        accept(&text(
            r##"{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}"##,
        ))
        .unwrap();
        accept(&text(
            r##"{"type":"object","properties":{"child":{"$ref":"#"}}}"##,
        ))
        .unwrap();
    }

    #[test]
    fn bombs_are_refused_before_they_run() {
        let mut definitions = serde_json::Map::new();
        for level in 0..30 {
            let reference = serde_json::json!({"$ref": format!("#/$defs/d{}", level + 1)});
            definitions.insert(
                format!("d{level}"),
                serde_json::json!({"allOf": [reference, reference]}),
            );
        }
        definitions.insert("d30".into(), serde_json::json!({"type": "string"}));
        let bomb = serde_json::json!({"$defs": definitions, "$ref": "#/$defs/d0"}).to_string();
        assert_eq!(accept(&text(&bomb)).unwrap_err().kind(), ErrorKind::TooLarge);
        let wide: serde_json::Map<_, _> = (0..50_000)
            .map(|n| (format!("p{n}"), serde_json::json!({})))
            .collect();
        let wide = serde_json::json!({"properties": wide}).to_string();
        assert_eq!(accept(&text(&wide)).unwrap_err().kind(), ErrorKind::TooLarge);
    }

    #[tokio::test]
    async fn patterns_are_linear_and_look_around_is_refused() {
        let evil = format!("\"{}!\"", "a".repeat(50));
        assert!(matches!(
            check(r#"{"pattern":"^(a+)+$"}"#, &evil).await,
            Fit::Unfit(_)
        ));
        assert!(accept(&text(r#"{"pattern":"(?<=a)b"}"#)).is_err());
    }

    #[tokio::test]
    async fn dialects_agree_on_format() {
        for dialect in [
            "",
            r#""$schema":"http://json-schema.org/draft-07/schema#","#,
            r#""$schema":"https://json-schema.org/draft/2020-12/schema","#,
        ] {
            let schema = format!(r#"{{{dialect}"format":"email"}}"#);
            assert_eq!(check(&schema, "\"x\"").await, Fit::Fits, "{schema}");
        }
        assert!(accept(&text(r#"{"$schema":"https://example.com/unknown"}"#)).is_err());
    }
}
