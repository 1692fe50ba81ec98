//! Bounds and intervals of the gateway.

use std::time::Duration;

use caliber_core::{Error, FieldProblem, Result};

use crate::endpoint::EndpointSettings;

/// Bounds and intervals of a gateway. Every limit stands against an upstream that is broken or hostile.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// What is resolved, started and dialled.
    pub endpoints: EndpointSettings,
    /// The largest message of an upstream, in bytes, where the call allows no larger result; default 16 MiB and
    /// 64 KiB for the envelope.
    pub message_bytes: usize,
    /// The most bytes of one event stream that answers one request, in bytes; default 64 MiB.
    pub stream_bytes: usize,
    /// Calls at once per server, where its definition says nothing; default 64.
    pub concurrency: u32,
    /// Calls that may wait for a place at one server; beyond that they are refused. Default 1,024.
    pub queue: usize,
    /// Open sessions in all; default 512.
    pub sessions: usize,
    /// Open sessions of one server; default 64. The one that rested longest makes room.
    pub sessions_per_server: usize,
    /// How long a session may rest before it is closed; default 30 min.
    pub idle: Duration,
    /// The longest opening of a session (start or dial, handshake, first listing), whatever time its callers have;
    /// default 30 s.
    pub opening: Duration,
    /// How long an upstream may stay silent to `server/discover` before it is taken for a legacy one; at most a
    /// quarter of the time that is left. It covers the start of a process. Default 5 s.
    pub probe: Duration,
    /// How long a change of the tool list is waited out, so that a burst causes one listing; default 200 ms.
    pub list_debounce: Duration,
    /// The shortest time between two listings that one session's notifications cause; default 2 s.
    pub list_interval: Duration,
    /// How often an open session lists its tools again by itself; default 10 min.
    pub relist: Duration,
    /// Pages of one listing; default 256.
    pub list_pages: usize,
    /// Tools of one listing; default 4,096.
    pub list_tools: usize,
    /// Bytes of one listing, in bytes; default 32 MiB.
    pub list_bytes: usize,
    /// Failed connections in a row after which the breaker opens; default 5.
    pub breaker_failures: u32,
    /// How long the breaker stays open at first; it doubles up to [`breaker_longest`](Self::breaker_longest).
    /// Default 250 ms.
    pub breaker_pause: Duration,
    /// The longest that the breaker stays open; default 15 s.
    pub breaker_longest: Duration,
    /// How long a process may take to end by itself once its input was closed, and an HTTP upstream to take leave;
    /// default 1 s. It never delays an answer.
    pub farewell: Duration,
    /// Answers to calls that had been given up, after which a stdio server counts as deaf to cancellation and is
    /// replaced; default 8.
    pub late_answers: u64,
    /// Calls in a row that ended by their deadline, after which a session is asked for a sign of life and replaced
    /// if it gives none; default 3.
    pub unanswered: u32,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            endpoints: EndpointSettings::default(),
            message_bytes: (16 << 20) + ENVELOPE_BYTES,
            stream_bytes: 64 << 20,
            concurrency: 64,
            queue: 1_024,
            sessions: 512,
            sessions_per_server: 64,
            idle: Duration::from_secs(30 * 60),
            opening: Duration::from_secs(30),
            probe: Duration::from_secs(5),
            list_debounce: Duration::from_millis(200),
            list_interval: Duration::from_secs(2),
            relist: Duration::from_secs(10 * 60),
            list_pages: 256,
            list_tools: 4_096,
            list_bytes: 32 << 20,
            breaker_failures: 5,
            breaker_pause: Duration::from_millis(250),
            breaker_longest: Duration::from_secs(15),
            farewell: Duration::from_secs(1),
            late_answers: 8,
            unanswered: 3,
        }
    }
}

impl GatewaySettings {
    /// Checks that the bounds leave room for work.
    pub(crate) fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut at_least = |field: &str, value: u64, least: u64| {
            if value < least {
                problems.push(FieldProblem {
                    field: field.to_owned(),
                    problem: format!("it is {value}; use at least {least}"),
                });
            }
        };
        let wide = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        at_least("message_bytes", wide(self.message_bytes), wide(ENVELOPE_BYTES));
        at_least("stream_bytes", wide(self.stream_bytes), wide(ENVELOPE_BYTES));
        at_least("concurrency", u64::from(self.concurrency), 1);
        at_least("sessions", wide(self.sessions), 1);
        at_least("sessions_per_server", wide(self.sessions_per_server), 1);
        at_least("list_pages", wide(self.list_pages), 1);
        at_least("list_tools", wide(self.list_tools), 1);
        at_least("list_bytes", wide(self.list_bytes), 1 << 10);
        at_least("breaker_failures", u64::from(self.breaker_failures), 1);
        at_least("unanswered", u64::from(self.unanswered), 1);
        at_least("late_answers", self.late_answers, 1);
        if self.opening.is_zero() {
            at_least("opening", 0, 1);
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid_fields(problems))
        }
    }
}

/// What a JSON-RPC envelope may add to a result, in bytes.
pub(crate) const ENVELOPE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_without_room_are_refused_all_at_once() {
        assert!(GatewaySettings::default().validate().is_ok());
        let settings = GatewaySettings {
            concurrency: 0,
            sessions: 0,
            message_bytes: 10,
            ..GatewaySettings::default()
        };
        let error = settings.validate().unwrap_err();
        let fields: Vec<_> = error.fields().iter().map(|field| field.field.as_str()).collect();
        assert_eq!(fields, ["message_bytes", "concurrency", "sessions"]);
    }
}
