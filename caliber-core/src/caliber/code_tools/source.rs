//! The source of a version: read once, looked at in the sandbox, never imported here.

use std::sync::PoisonError;

use crate::audit::AuditAction;
use crate::caliber::{Caliber, Inner};
use crate::clock::Deadline;
use crate::code_tool::{CodeToolDefinition, CodeToolRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::id::CodeToolId;
use crate::principal::{Principal, Surface};
use crate::reason::{Reason, ReasonCode};
use crate::registry::{Change, Expect};
use crate::sandbox::{PinnedProgram, Reflection};
use crate::text::escaped;

impl Caliber {
    /// The signature, documentation and source of a version, as the sandbox sees them in a child of its own; never by
    /// an import here. What was seen is kept by content hash. Untrusted text, bounded, not escaped. What stands in
    /// the way of looking is told in the reflection.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden; `Timeout`; `Unavailable` when the store or the sandbox is away.
    pub async fn code_tool_source(&self, who: (&Principal, Surface), id: &CodeToolId) -> Result<Reflection> {
        let inner = &self.inner;
        let record = inner.visible_code_tool(who.0, id).await?;
        let audit = inner.entry(
            who,
            AuditAction::InspectCodeTool,
            ("code_tool", id.as_str()),
            Some(&record.project),
            serde_json::json!({ "content_hash": record.content_hash }),
        )?;
        let change = Change::RecordInspection { tool: id.clone() };
        inner.commit(change, Expect::nothing(), audit).await?;
        inner.reflection(&record).await
    }
}

impl Inner {
    /// Reads the source and keeps it.
    pub(super) async fn pin(&self, definition: &CodeToolDefinition) -> Result<PinnedProgram> {
        let sandbox = self.sandbox.as_ref().ok_or_else(no_sandbox)?;
        let deadline = Deadline::after(self.settings.pin_timeout);
        let pinning = sandbox.pin(&definition.program, deadline);
        match tokio::time::timeout_at(deadline.instant(), pinning).await {
            Ok(pinned) => pinned,
            Err(_) => Err(too_slow("reading the source", "pin_timeout")),
        }
    }

    /// Imports the program once, in the sandbox: what hangs, ends or has no such callable is found out now, by who
    /// registers it, and not at the first run.
    pub(super) async fn try_import(&self, pinned: &PinnedProgram) -> Result<Reflection> {
        let sandbox = self.sandbox.as_ref().ok_or_else(no_sandbox)?;
        let deadline = Deadline::after(self.settings.inspect_timeout);
        let inspecting = sandbox.inspect(pinned, deadline);
        let reflection = match tokio::time::timeout_at(deadline.instant(), inspecting).await {
            Ok(reflection) => reflection?,
            Err(_) => return Err(too_slow("importing the module", "inspect_timeout")),
        };
        if reflection.callable {
            return Ok(reflection);
        }
        let why = reflection
            .error
            .as_deref()
            .unwrap_or("its module was not imported");
        Err(Error::invalid(
            "program",
            format!("it cannot be called: {}", escaped(why, 1_000)),
        ))
    }

    async fn reflection(&self, record: &CodeToolRecord) -> Result<Reflection> {
        let unseen = |text: String| Reflection {
            error: Some(text),
            ..Reflection::default()
        };
        // What is not allowed any more is not imported any more, and not shown from memory either.
        if let Some(Reason { text, .. }) = self.policy.blockers(&record.definition).into_iter().next() {
            return Ok(unseen(text));
        }
        let kept = self
            .reflections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&record.content_hash)
            .cloned();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let Some(sandbox) = &self.sandbox else {
            return Ok(unseen(no_sandbox().message().to_owned()));
        };
        if !sandbox.report().is_available() {
            return Ok(unseen(
                "the sandbox does not enforce what is required, so nothing is imported".to_owned(),
            ));
        }
        let deadline = Deadline::after(self.settings.inspect_timeout);
        let inspecting = sandbox.inspect(&record.pinned, deadline);
        let reflection = match tokio::time::timeout_at(deadline.instant(), inspecting).await {
            Ok(reflection) => reflection?,
            Err(_) => return Err(too_slow("looking at the source", "inspect_timeout")),
        };
        self.keep_reflection(record, &reflection);
        Ok(reflection)
    }

    /// What failed may have failed for a reason that passes, and is not kept.
    pub(super) fn keep_reflection(&self, record: &CodeToolRecord, reflection: &Reflection) {
        if reflection.available {
            self.reflections
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .put(record.content_hash, reflection.clone());
        }
    }
}

pub(in crate::caliber) fn no_sandbox() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "there is no sandbox, so no code tool can be registered or run; build caliber with one",
    )
    .with_reason(ReasonCode::SandboxUnavailable)
}

fn too_slow(what: &str, setting: &str) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!("{what} took longer than the setting {setting} allows; nothing was changed"),
    )
    .with_reason(ReasonCode::Timeout)
}
