//! The one terminal record of a call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Inner, InvokeOutcome};
use crate::error::{Error, ErrorKind, Result};
use crate::gateway::Answer;
use crate::id::InvocationId;
use crate::invocation::{DETAIL_LENGTH, Invocation, InvocationOutcome, Settlement};
use crate::reason::ReasonCode;
use crate::text::escaped;

/// A call that has no terminal record yet. It gets exactly one, whatever becomes of it: by [`refused`](Self::refused),
/// by [`settled`](Self::settled), or, when its task is dropped or panics, by being dropped.
pub(super) struct OpenCall {
    inner: Arc<Inner>,
    /// What is known of the call.
    pub(super) invocation: Invocation,
    /// Whether its intent is in the ledger. From then on a sweep settles what nobody settles here.
    pub(super) begun: bool,
    started: Instant,
    closed: bool,
}

impl OpenCall {
    pub(super) fn new(inner: &Arc<Inner>, invocation: Invocation, started: Instant) -> Self {
        Self {
            inner: Arc::clone(inner),
            invocation,
            begun: false,
            started,
            closed: false,
        }
    }

    /// Records a call that was refused before anything was sent.
    pub(super) fn refused(mut self, error: Error) -> Error {
        let outcome = match error.kind() {
            ErrorKind::Timeout => InvocationOutcome::Timeout,
            ErrorKind::Cancelled => InvocationOutcome::Cancelled,
            _ => InvocationOutcome::Denied,
        };
        let settlement = self.failure(outcome, &error);
        self.record(settlement);
        told(error, &self.invocation.id, outcome)
    }

    /// Records how a call that was handed to the gateway ended, and answers its caller.
    pub(super) fn settled(self, answer: Result<Answer>) -> Result<InvokeOutcome> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Err(self.failed(error)),
        };
        let outcome = if answer.is_error {
            InvocationOutcome::ToolError
        } else {
            InvocationOutcome::Ok
        };
        let bytes = u64::try_from(answer.result.as_str().len()).ok();
        let (invocation, duration) = self.ended(outcome, None, None, bytes);
        Ok(InvokeOutcome {
            invocation,
            answer,
            duration,
        })
    }

    /// Records how a run ended that the sandbox has answered for; gives its identifier and how long it took.
    pub(super) fn ended(
        mut self,
        outcome: InvocationOutcome,
        reason: Option<ReasonCode>,
        detail: Option<String>,
        result_bytes: Option<u64>,
    ) -> (InvocationId, Duration) {
        let detail = detail.map(|detail| bounded(&detail));
        let settlement = self.settlement(outcome, reason, detail, result_bytes);
        self.record(settlement);
        (self.invocation.id.clone(), self.started.elapsed())
    }

    /// Records a call that was handed over and failed; gives the error that its caller gets.
    pub(super) fn failed(mut self, error: Error) -> Error {
        let outcome = outcome_of(&error);
        let settlement = self.failure(outcome, &error);
        self.record(settlement);
        told(error, &self.invocation.id, outcome)
    }

    fn record(&mut self, settlement: Settlement) {
        self.closed = true;
        self.inner.record(self.invocation.clone(), settlement, self.begun);
    }

    fn failure(&self, outcome: InvocationOutcome, error: &Error) -> Settlement {
        self.settlement(outcome, error.reason(), Some(bounded(error.message())), None)
    }

    fn settlement(
        &self,
        outcome: InvocationOutcome,
        reason: Option<ReasonCode>,
        detail: Option<String>,
        result_bytes: Option<u64>,
    ) -> Settlement {
        let duration = self.started.elapsed();
        Settlement {
            outcome,
            reason,
            detail,
            ended_at: self.inner.now(),
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            result_bytes,
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.closed || self.begun {
            return;
        }
        let settlement = if std::thread::panicking() {
            self.settlement(
                InvocationOutcome::OutcomeUnknown,
                Some(ReasonCode::OutcomeUnknown),
                Some("the call ended in a defect".to_owned()),
                None,
            )
        } else {
            self.settlement(
                InvocationOutcome::Cancelled,
                Some(ReasonCode::Cancelled),
                Some("the runtime that made the call has ended".to_owned()),
                None,
            )
        };
        self.record(settlement);
    }
}

/// What a surface needs to know of a call that failed: where it stands in the ledger, and as what.
fn told(error: Error, id: &InvocationId, outcome: InvocationOutcome) -> Error {
    error
        .with_context("invocation", id.as_str())
        .with_context("outcome", outcome.as_str())
}

/// A detail as the ledger takes it.
fn bounded(text: &str) -> String {
    let mut detail = escaped(text, DETAIL_LENGTH / 2);
    while detail.len() > DETAIL_LENGTH {
        detail.pop();
    }
    detail
}

/// The terminal outcome that an error of the gateway stands for.
fn outcome_of(error: &Error) -> InvocationOutcome {
    match error.kind() {
        ErrorKind::Denied => InvocationOutcome::Denied,
        ErrorKind::Timeout => InvocationOutcome::Timeout,
        ErrorKind::Cancelled => InvocationOutcome::Cancelled,
        ErrorKind::Upstream | ErrorKind::TooLarge | ErrorKind::Unavailable | ErrorKind::Unsupported => {
            InvocationOutcome::UpstreamError
        }
        // Whatever else went wrong, nobody knows whether the call was sent.
        _ => InvocationOutcome::OutcomeUnknown,
    }
}
