//! What processes say, and what is said to them.

use std::os::fd::AsFd;
use std::time::Instant;

use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{ExecutionMode, Exit, RunStatus};
use caliber_core::{Error, ErrorKind};
use serde::Deserialize;

use super::super::output::{Capture, redacted};
use super::super::protocol::{Frame, Said, Told, Violation, frame, new_nonce};
use super::answer::End;
use super::run::{Job, Owner, Progress, Run, Speech};
use super::wire::Read;
use super::{Part, SETTLE, Supervisor, Token, failed};

/// The longest text of an error that is passed on, in bytes.
const MESSAGE: usize = 8 << 10;

/// Why there is no value, as the bootstrap says it.
#[derive(Deserialize)]
struct Problem {
    kind: String,
    #[serde(rename = "type")]
    error_type: String,
    message: String,
}

impl Supervisor {
    /// Gives a process its job.
    pub(super) fn assign(&mut self, id: u64, job: Job) {
        let cpu = self.cpu_seconds(&job);
        let output = self.shared.settings.output_bytes;
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if run.many {
            // What it wrote after its last answer is of no call.
            for stream in [&mut run.stdout, &mut run.stderr] {
                stream.drain();
                stream.capture = Capture::new(output);
            }
        }
        run.stdout.capture.redact(&job.request.secrets);
        run.stderr.capture.redact(&job.request.secrets);
        run.since = job.since.unwrap_or_else(Instant::now);
        if run.cpu_seconds == 0 && !run.many {
            run.cpu_seconds = cpu;
        }
        run.job = Some(job);
        self.call_when_ready(id);
    }

    /// Sends the call to a process that is ready for it.
    pub(super) fn call_when_ready(&mut self, id: u64) {
        let needs_group = self.groups.is_some();
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if run.progress != Progress::Ready {
            return;
        }
        // A forked call joins its control group before it is told anything.
        if needs_group && run.speech == Speech::Call && run.group.is_none() {
            return;
        }
        let Some(job) = &run.job else {
            return;
        };
        if run.many {
            run.nonce = new_nonce();
            run.frames.expect(
                run.nonce,
                usize::try_from(run.limits.result_bytes).unwrap_or(usize::MAX),
            );
        }
        match run.speech {
            Speech::Look => {}
            Speech::Json => run.outbound.push(job.request.arguments.as_str().as_bytes()),
            Speech::Bootstrap | Speech::Call | Speech::Frames => {
                // A process that was made for its job was given its limit with it.
                let is_limited = run.speech == Speech::Bootstrap && run.mode != ExecutionMode::Oneshot;
                let cpu = if is_limited { 0 } else { run.cpu_seconds };
                run.outbound
                    .push(&frame(Told::Call, &run.nonce, &payload(job, cpu)));
            }
        }
        run.progress = Progress::Called;
        run.called = Some(Instant::now());
        self.send(id);
    }

    fn send(&mut self, id: u64) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        let is_pipe = run.speech == Speech::Json;
        let Some(channel) = &run.channel else {
            return;
        };
        run.outbound.send(channel, !is_pipe);
        let writes = !run.outbound.is_empty();
        let token = Token {
            id,
            part: Part::Channel,
        };
        if !is_pipe {
            self.poller.modify(channel, token, writes);
        } else if writes {
            if self.poller.add(channel, token, true).is_err() {
                self.poller.modify(channel, token, true);
            }
        } else if run.progress == Progress::Called {
            // All is written: the program sees the end of its input.
            run.channel = None;
        }
    }

    /// Status pipe of a run: its program runs, or a step of its set-up failed.
    pub(super) fn run_started(&mut self, id: u64) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        let placeholder = Owner::Forked {
            zygote: 0,
            pidfd: None,
        };
        match std::mem::replace(&mut run.owner, placeholder) {
            Owner::Starting(starting) => {
                self.poller.remove(starting.status());
                match starting.finish() {
                    Ok(child) => {
                        run.owner = Owner::Child(child);
                        if matches!(run.speech, Speech::Frames | Speech::Json) {
                            run.progress = Progress::Ready;
                            run.ready = Some(Instant::now());
                            self.call_when_ready(id);
                        }
                    }
                    Err(failure) => self.finish(id, Err(failed(&failure))),
                }
            }
            other => run.owner = other,
        }
    }

    pub(super) fn run_channel(&mut self, id: u64) {
        self.send(id);
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if run.speech == Speech::Json {
            return;
        }
        let read = read_frames(run);
        self.after_reading(id, read);
    }

    fn after_reading(&mut self, id: u64, read: Result<Read, Violation>) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if let Err(violation) = read {
            let status = status_of(violation, run.limits.result_bytes);
            self.finish(id, Ok(status.into()));
            return;
        }
        if run.progress == Progress::Ready {
            self.call_when_ready(id);
            self.offer_standby(id);
        }
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if run.many && run.end.is_some() && read != Ok(Read::Closed) {
            if let Some(end) = run.end.take() {
                self.finish_one_of_many(id, end);
            }
            return;
        }
        if read == Ok(Read::Closed) {
            if let Some(channel) = run.channel.take() {
                self.poller.remove(&channel);
            }
            match run.end.take() {
                Some(end) => self.finish(id, Ok(end)),
                // How it ended is known when it has ended.
                None => self.run_may_have_ended(id),
            }
        } else if run.end.is_some() && run.settle_at.is_none() {
            // A process that was started by the tool may hold the channel open; it is not waited for.
            run.settle_at = Some(Instant::now() + SETTLE);
        }
    }

    pub(super) fn run_output(&mut self, id: u64, part: Part) {
        let limit = self.runs.get(&id).map_or(0, |run| run.limits.result_bytes);
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if part == Part::Stdout && run.speech == Speech::Json {
            let value = &mut run.value;
            let too_large = |value: &Vec<u8>| value.len() as u64 > limit;
            let Some(reader) = run.stdout.reader() else {
                return;
            };
            let read = super::wire::drain(reader, |bytes| {
                value.extend_from_slice(bytes);
                !too_large(value)
            });
            if too_large(value) {
                self.finish(id, Ok(RunStatus::ResultTooLarge { limit }.into()));
            } else if read == Read::Closed {
                self.poller.remove(reader);
            }
            return;
        }
        let stream = if part == Part::Stdout {
            &mut run.stdout
        } else {
            &mut run.stderr
        };
        stream.drain();
    }

    /// Reads what is left of the channel of a process that has ended.
    pub(super) fn read_the_rest(&mut self, id: u64) {
        while let Some(run) = self.runs.get_mut(&id) {
            if run.channel.is_none() || run.speech == Speech::Json {
                return;
            }
            let read = read_frames(run);
            let go_on = read == Ok(Read::More);
            if read == Ok(Read::Empty) {
                // Something that it started holds the channel; it is about to be killed.
                return;
            }
            self.after_reading(id, read);
            if !go_on {
                return;
            }
        }
    }
}

/// The payload of a call.
fn payload(job: &Job, cpu: u64) -> Vec<u8> {
    let mut secrets = serde_json::Map::new();
    for (name, value) in &job.request.secrets {
        secrets.insert(name.clone(), value.expose().into());
    }
    let secrets = serde_json::Value::Object(secrets).to_string();
    let arguments = job.request.arguments.as_str();
    format!(r#"{{"cpu":{cpu},"secrets":{secrets},"arguments":{arguments}}}"#).into_bytes()
}

fn status_of(violation: Violation, limit: u64) -> RunStatus {
    match violation {
        Violation::TooLarge => RunStatus::ResultTooLarge { limit },
        Violation::Nonce => RunStatus::ProtocolViolation {
            problem: "a frame belongs to another call".into(),
        },
        Violation::Malformed(problem) => RunStatus::ProtocolViolation {
            problem: problem.into(),
        },
    }
}

/// Reads frames until there are none or one is wrong.
fn read_frames(run: &mut Run) -> Result<Read, Violation> {
    let Some(channel) = run.channel.take() else {
        return Ok(Read::Closed);
    };
    let mut problem = None;
    let read = super::wire::drain(channel.as_fd(), |bytes| {
        run.frames.push(bytes);
        loop {
            match run.frames.next() {
                Ok(Some(frame)) => {
                    if let Err(violation) = hear(run, frame) {
                        problem = Some(violation);
                        return false;
                    }
                }
                Ok(None) => return true,
                Err(violation) => {
                    problem = Some(violation);
                    return false;
                }
            }
        }
    });
    run.channel = Some(channel);
    match problem {
        Some(violation) => Err(violation),
        None => Ok(read),
    }
}

fn hear(run: &mut Run, frame: Frame) -> Result<(), Violation> {
    const ORDER: Violation = Violation::Malformed("a frame came out of turn");
    if run.end.is_some() {
        return Err(Violation::Malformed(
            "a frame came after the one that ends the call",
        ));
    }
    match (frame.said, run.progress) {
        (Said::Hello, Progress::Made) if !matches!(run.speech, Speech::Frames | Speech::Json) => {
            run.progress = match run.speech {
                Speech::Call => Progress::Ready,
                _ => Progress::Greeted,
            };
            if run.progress == Progress::Ready {
                run.ready = Some(Instant::now());
            }
        }
        (Said::Ready, Progress::Greeted) if run.speech == Speech::Bootstrap => {
            run.progress = Progress::Ready;
            run.ready = Some(Instant::now());
        }
        (Said::Result, Progress::Called) => run.end = Some(End::Value(frame.payload)),
        (Said::Result, Progress::Greeted) if run.speech == Speech::Look => {
            run.end = Some(End::Value(frame.payload));
        }
        (Said::Error, Progress::Greeted | Progress::Called) => {
            run.end = Some(error_of(run, &frame.payload).into())
        }
        _ => return Err(ORDER),
    }
    Ok(())
}

fn error_of(run: &Run, payload: &[u8]) -> RunStatus {
    let secrets = run
        .job
        .as_ref()
        .map(|job| job.request.secrets.as_slice())
        .unwrap_or_default();
    error_status(payload, secrets)
}

/// What an error frame says, within bounds.
pub(super) fn error_status(
    payload: &[u8],
    secrets: &[(String, caliber_core::secret::SecretText)],
) -> RunStatus {
    let Ok(problem) = serde_json::from_slice::<Problem>(payload) else {
        return RunStatus::ProtocolViolation {
            problem: "the frame with the error cannot be read".into(),
        };
    };
    // Cut last: the beginning of a secret that was cut would not be found. A frame with an error is bounded.
    let message = bounded(redacted(&problem.message, secrets), MESSAGE);
    let error_type = bounded(redacted(&problem.error_type, secrets), 256);
    if problem.kind == "invalid" {
        RunStatus::ResultInvalid {
            problem: format!("the result cannot be written as JSON: {error_type}: {message}"),
        }
    } else {
        RunStatus::ToolError { error_type, message }
    }
}

fn bounded(mut text: String, limit: usize) -> String {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// The error of a child that ended before it said that its restrictions are in place.
pub(super) fn not_set_up(mode: ExecutionMode, exit: Exit) -> Error {
    let what = match mode {
        ExecutionMode::Native => "program",
        _ => "interpreter",
    };
    let how = match exit {
        Exit::Code(code) => format!("with code {code}"),
        Exit::Signal(signal) => format!("by signal {signal}"),
        Exit::Unknown => "in a way that nobody saw".to_owned(),
    };
    Error::new(
        ErrorKind::Unavailable,
        format!("the {what} ended {how} before it was set up; the tool did not run"),
    )
    .with_reason(ReasonCode::SandboxFailed)
}

#[cfg(test)]
mod tests {
    use caliber_core::secret::SecretText;

    use super::*;

    #[test]
    fn an_error_names_no_secret_however_it_is_cut() {
        let secrets = [("TOKEN".to_owned(), SecretText::new("hunter2-hunter2"))];
        for kind in ["tool", "invalid"] {
            for before in [0, 250, MESSAGE - 7] {
                let text = format!("{}hunter2-hunter2", "x".repeat(before));
                let payload = serde_json::json!({ "kind": kind, "type": text, "message": text });
                let status = error_status(payload.to_string().as_bytes(), &secrets);
                let shown = format!("{status:?}");
                assert!(!shown.contains("hunter2"), "{shown}");
                assert!(shown.contains("xxx") || shown.contains("[secret]"), "{shown}");
            }
        }
    }
}
