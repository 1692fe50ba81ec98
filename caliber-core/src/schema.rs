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

use crate::digest::{ContentHash, DescriptorDigest};
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
/// The longest wait for one validation. The work itself is bounded by [`VALIDATION_STEPS`].
pub const VALIDATION_TIME: Duration = Duration::from_secs(1);
/// The most work of one validation: subschemas times nodes of the value, and a step for each pattern and 16 bytes.
/// A step takes some 10 ns, and a validation cannot be interrupted.
pub const VALIDATION_STEPS: u64 = 500_000_000;
/// Up to this much work is done in place: handing it over costs more.
const STEPS_IN_PLACE: u64 = 50_000;
/// Beyond this much work validations pass one by one, so that many of them leave the others their threads.
const STEPS_AT_ONCE: u64 = 5_000_000;
/// The longest text about what does not fit, in characters.
const PROBLEM_LENGTH: usize = 300;
/// Compiled schemas that are kept.
const CACHE_ENTRIES: usize = 1_024;

/// Compiles schemas and keeps the compiled ones by digest.
pub struct SchemaChecker {
    compiled: Mutex<LruCache<(SchemaOwner, Part), Arc<Compiled>>>,
    running: Arc<Semaphore>,
    running_long: Arc<Semaphore>,
}

/// A schema that was accepted.
struct Compiled {
    validator: Validator,
    subschemas: u64,
    patterns: u64,
    /// Whether a reference leads back to where it stands. Then the text of a misfit is not worked out: each level of
    /// the value would multiply the work.
    loops: bool,
}

/// Whose schema it is: what never has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SchemaOwner {
    /// A descriptor.
    Descriptor(DescriptorDigest),
    /// A version of a code tool.
    CodeTool(ContentHash),
}

impl From<DescriptorDigest> for SchemaOwner {
    fn from(digest: DescriptorDigest) -> Self {
        Self::Descriptor(digest)
    }
}

impl From<ContentHash> for SchemaOwner {
    fn from(hash: ContentHash) -> Self {
        Self::CodeTool(hash)
    }
}

/// Which schema of a tool.
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
            running_long: Arc::new(Semaphore::new(1)),
        }
    }
}

impl SchemaChecker {
    /// Whether `value` fits the schema. `owner` and `part` name the schema for reuse.
    ///
    /// Cancel-safe; what takes long is done off the runtime's threads.
    pub async fn check(
        &self,
        owner: impl Into<SchemaOwner>,
        part: Part,
        schema: &JsonText,
        value: &JsonText,
    ) -> Fit {
        let compiled = match self.compiled(owner.into(), part, schema).await {
            Ok(compiled) => compiled,
            Err(problem) => return Fit::Unchecked(problem),
        };
        let steps = compiled.steps(value.as_str());
        if steps <= STEPS_IN_PLACE {
            return compiled.fit(value);
        }
        if steps > VALIDATION_STEPS {
            return Fit::Unchecked(format!(
                "the schema and the value are too large together: up to {steps} steps, at most {VALIDATION_STEPS}"
            ));
        }
        let places = if steps > STEPS_AT_ONCE {
            &self.running_long
        } else {
            &self.running
        };
        let value = value.clone();
        aside(places, move || compiled.fit(&value))
            .await
            .unwrap_or_else(Fit::Unchecked)
    }

    async fn compiled(
        &self,
        owner: SchemaOwner,
        part: Part,
        schema: &JsonText,
    ) -> Result<Arc<Compiled>, String> {
        let known = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = known().get(&(owner, part)) {
            return Ok(Arc::clone(compiled));
        }
        let schema = schema.clone();
        let compiled = aside(&self.running, move || compile(&schema)).await?;
        let compiled = Arc::new(compiled.map_err(|error| error.to_string())?);
        known().put((owner, part), Arc::clone(&compiled));
        Ok(compiled)
    }
}

/// Does work that cannot be interrupted off the runtime's threads. It holds its place until it has ended, also when
/// nobody waits for it any more.
async fn aside<T: Send + 'static>(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let place = tokio::time::timeout(VALIDATION_TIME, Arc::clone(places).acquire_owned()).await;
    let Ok(Ok(place)) = place else {
        return Err("too many schema checks are under way; try again".to_owned());
    };
    let work = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    match tokio::time::timeout(VALIDATION_TIME, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err("the schema check failed".to_owned()),
        Err(_) => Err(format!(
            "the schema check took longer than {} ms",
            VALIDATION_TIME.as_millis()
        )),
    }
}

impl Compiled {
    /// How much work a check of `text` may be, at most.
    fn steps(&self, text: &str) -> u64 {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let patterns = self.patterns.saturating_mul(bytes / 16);
        self.subschemas
            .saturating_mul(nodes(text))
            .saturating_add(patterns)
    }

    fn fit(&self, value: &JsonText) -> Fit {
        let value: Value = match value.read() {
            Ok(value) => value,
            Err(error) => return Fit::Unchecked(error.to_string()),
        };
        if self.validator.is_valid(&value) {
            return Fit::Fits;
        }
        if self.loops {
            return Fit::Unfit("the value does not fit the schema".to_owned());
        }
        match self.validator.validate(&value) {
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
}

/// How many values a JSON text holds, at most: one, and one more for each bracket and comma outside of strings.
fn nodes(text: &str) -> u64 {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
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

fn compile(schema: &JsonText) -> Result<Compiled> {
    let value: Value = schema.read()?;
    let (subschemas, loops) = check_references(&value)?;
    let patterns = count_patterns(&value);
    if patterns > SCHEMA_PATTERNS {
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
    let validator = options.build(&value).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "the schema cannot be used: {}",
                escaped(&error.to_string(), PROBLEM_LENGTH)
            ),
        )
    })?;
    Ok(Compiled {
        validator,
        subschemas,
        patterns: u64::try_from(patterns).unwrap_or(u64::MAX),
        loops,
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

/// Refuses outside and dangling references; counts what the schema stands for once they are followed, and tells
/// whether one of them leads back to where it stands.
fn check_references(root: &Value) -> Result<(u64, bool)> {
    let mut anchors = HashMap::new();
    collect_anchors(root, &mut anchors);
    let mut counter = Counter {
        root,
        anchors,
        known: HashMap::new(),
        open: HashSet::new(),
        loops: false,
    };
    let total = counter.count(root, 0)?;
    if total > EXPANDED_SUBSCHEMAS {
        return Err(too_large());
    }
    Ok((total.max(1), counter.loops))
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
    loops: bool,
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
                    self.loops = true;
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

    /// Each level of the value would double the work where the misfit of every branch is worked out.
    #[tokio::test]
    async fn a_misfit_of_a_recursive_union_is_found_at_once() {
        let branch = serde_json::json!({"items": {"$ref": "#/$defs/a"}, "not": {"type": "string"}});
        let schema = |union: &str| {
            let both = serde_json::json!({ union: [branch, branch] });
            serde_json::json!({"$ref": "#/$defs/a", "$defs": {"a": both}}).to_string()
        };
        let value = format!("{}\"leaf\"{}", "[".repeat(60), "]".repeat(60));
        for union in ["anyOf", "oneOf"] {
            assert!(
                matches!(check(&schema(union), &value).await, Fit::Unfit(_)),
                "{union}"
            );
        }
    }

    #[tokio::test]
    async fn work_is_the_product_of_schema_and_value_and_bounded() {
        let wide: Vec<_> = (0..9_000)
            .map(|number| serde_json::json!({"maxItems": 100_000 + number}))
            .collect();
        let schema = serde_json::json!({"items": {"allOf": wide}}).to_string();
        assert_eq!(check(&schema, "[1]").await, Fit::Fits);
        let value = format!("[{}1]", "1,".repeat(100_000));
        assert!(matches!(check(&schema, &value).await, Fit::Unchecked(problem) if problem.contains("steps")));
        // A long string is one value, whatever stands in it.
        assert_eq!(nodes(r#"["[,{\",[", {"a": [1, 2]}]"#), 6);
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
