//! How a change of a server is applied: secrets sealed, stored ones kept in their place, differences told.

use std::collections::BTreeMap;

use serde::Serialize;

use super::servers::ServerPatch;
use crate::error::{Error, ErrorKind, FieldProblem, Result};
use crate::id::SecretId;
use crate::principal::Subject;
use crate::reason::ReasonCode;
use crate::registry::{NewSecret, SecretOwner};
use crate::secret::{ConfigValue, SecretReference};
use crate::server::{ServerDefinition, ServerRecord, ServerStatus, Visibility};

/// Refuses a definition that is not registered and refers to a stored secret: it would be that of another server.
pub(super) fn refuse_stored(definition: &ServerDefinition) -> Result<()> {
    let values = definition.config_values();
    let foreign = values
        .into_iter()
        .find(|(_, value)| matches!(value.reference(), Some(SecretReference::Stored(_))));
    foreign.map_or(Ok(()), |(field, _)| Err(foreign_secret(field)))
}

/// Moves literal secrets out of the definition; what stays are references.
pub(super) fn seal(record: &mut ServerRecord) -> Result<Vec<NewSecret>> {
    let mut secrets = Vec::new();
    let mut problems = Vec::new();
    for (field, value) in record.definition.config_values_mut() {
        match value {
            ConfigValue::Reference(_) => {}
            ConfigValue::Unchanged => problems.push(FieldProblem {
                field,
                problem: "nothing is stored at this place; give the value".to_owned(),
            }),
            ConfigValue::Literal(secret) => {
                let id = SecretId::new();
                secrets.push(NewSecret {
                    id: id.clone(),
                    owner: SecretOwner::Server(record.id.clone()),
                    value: secret.clone(),
                });
                *value = ConfigValue::Reference(SecretReference::Stored(id));
            }
        }
    }
    if problems.is_empty() {
        Ok(secrets)
    } else {
        Err(Error::invalid_fields(problems))
    }
}

pub(super) fn apply(record: &mut ServerRecord, patch: ServerPatch) -> Result<()> {
    let before = record.definition.clone();
    let stored: BTreeMap<String, SecretReference> = before
        .config_values()
        .into_iter()
        .filter_map(|(path, value)| Some((path, value.reference()?.clone())))
        .collect();
    let ServerPatch {
        description,
        icon,
        endpoint,
        auth,
        sharing,
        limits,
        owner,
        visibility,
        status,
        expect: _,
    } = patch;
    let (kept_endpoint, kept_auth) = (endpoint.is_none(), auth.is_none());
    let definition = &mut record.definition;
    replace(&mut definition.description, description);
    replace(&mut definition.icon, icon);
    replace(&mut definition.endpoint, endpoint);
    replace(&mut definition.auth, auth);
    replace(&mut definition.sharing, sharing);
    replace(&mut definition.limits, limits);
    let moved = before.endpoint.origin() != definition.endpoint.origin();
    let mut problems = Vec::new();
    for (path, value) in definition.config_values_mut() {
        // Naming a stored secret is another way to say that it is unchanged, and of its own place only.
        if let ConfigValue::Reference(reference @ SecretReference::Stored(_)) = &*value {
            if stored.get(&path) != Some(reference) {
                return Err(foreign_secret(path));
            }
            *value = ConfigValue::Unchanged;
        }
        let kept = if path.starts_with("auth_config.") {
            kept_auth
        } else {
            kept_endpoint
        };
        let unchanged = matches!(value, ConfigValue::Unchanged);
        if unchanged && let Some(reference) = stored.get(&path) {
            *value = ConfigValue::Reference(reference.clone());
        }
        if moved && (kept || unchanged) && stored.contains_key(&path) {
            problems.push(FieldProblem {
                field: path,
                problem: "the server moves to another origin; give this value again".to_owned(),
            });
        }
    }
    replace(&mut record.owner, owner);
    replace(&mut record.visibility, visibility);
    replace(&mut record.status, status);
    if problems.is_empty() {
        return Ok(());
    }
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
    let text = format!(
        "a secret does not follow a server to another origin; give again: {}",
        fields.join(", ")
    );
    Err(Error::new(ErrorKind::Conflict, text).with_reason(ReasonCode::SecretOriginChanged))
}

/// The refusal of a reference to a secret that was given to another server, or for another place.
fn foreign_secret(field: String) -> Error {
    Error::invalid(
        field,
        "a stored secret belongs to the place that it was given for; give the value",
    )
}

fn replace<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// What changed, field by field, secrets masked: for the trail.
pub(super) fn differences(
    before: &ServerRecord,
    after: &ServerRecord,
) -> Result<serde_json::Map<String, serde_json::Value>> {
    #[derive(Serialize)]
    struct Shown<'a> {
        definition: ServerDefinition,
        // References are compared too: they move when a secret is given again, and show nothing.
        secrets_changed: &'a str,
        owner: &'a Subject,
        visibility: Visibility,
        status: ServerStatus,
    }
    let shown = |record: &ServerRecord| {
        let definition = record.definition.masked();
        let references = serde_json::to_string(&record.definition)
            .map_err(|error| Error::internal("a definition could not be written").with_source(error))?;
        let digest = crate::digest::Fingerprint::of(references.as_bytes()).to_string();
        let shown = Shown {
            definition,
            secrets_changed: &digest,
            owner: &record.owner,
            visibility: record.visibility,
            status: record.status,
        };
        serde_json::to_value(shown)
            .map_err(|error| Error::internal("a record could not be written").with_source(error))
    };
    let (before, after) = (shown(before)?, shown(after)?);
    let mut changes = serde_json::Map::new();
    let flat = |value: &serde_json::Value| -> BTreeMap<String, serde_json::Value> {
        let definition = value
            .get("definition")
            .and_then(serde_json::Value::as_object)
            .cloned()
            .unwrap_or_default();
        let rest = value
            .as_object()
            .cloned()
            .unwrap_or_default()
            .into_iter()
            .filter(|(key, _)| key != "definition");
        definition.into_iter().chain(rest).collect()
    };
    let (before, after) = (flat(&before), flat(&after));
    for (key, now) in &after {
        let was = before.get(key).unwrap_or(&serde_json::Value::Null);
        if was != now && key != "secrets_changed" {
            changes.insert(key.clone(), serde_json::json!({ "from": was, "to": now }));
        }
    }
    if changes.is_empty() && before.get("secrets_changed") != after.get("secrets_changed") {
        changes.insert("secrets".to_owned(), serde_json::json!("changed"));
    }
    Ok(changes)
}
