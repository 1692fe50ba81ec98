//! How a run ended, as the sandbox saw it: nothing here is the word of the tool but its value and its output.

use serde::{Deserialize, Serialize};

use super::Guarantee;
use crate::json::JsonText;

/// How a run ended, with everything the sandbox saw of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunOutcome {
    /// The one end.
    pub status: RunStatus,
    /// What the tool wrote to standard output. Secrets of the call are replaced.
    pub stdout: Captured,
    /// What the tool wrote to standard error. Secrets of the call are replaced.
    pub stderr: Captured,
    /// How the process was made.
    pub mode: ExecutionMode,
    /// The required guarantees that did not hold for this run; empty unless the operator allows that.
    pub unenforced: Vec<Guarantee>,
    /// How long each part took.
    pub times: PhaseTimes,
    /// What it used.
    pub usage: Usage,
}

/// The one end of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RunStatus {
    /// The tool returned a value.
    Ok {
        /// The value.
        value: JsonText,
    },
    /// The tool raised.
    ToolError {
        /// The type of what was raised.
        error_type: String,
        /// Its text, bounded.
        message: String,
    },
    /// The process ended without a result.
    NoResult {
        /// What it was doing.
        phase: Phase,
        /// How it ended.
        exit: Exit,
    },
    /// The deadline passed; the tree was killed.
    DeadlineExceeded {
        /// What it was doing.
        phase: Phase,
    },
    /// The value is no JSON that can be passed on unchanged.
    ResultInvalid {
        /// What is wrong with it.
        problem: String,
    },
    /// The value is larger than allowed.
    ResultTooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The process broke the protocol of the sandbox.
    ProtocolViolation {
        /// How.
        problem: String,
    },
    /// A limit of the sandbox ended it.
    ResourceLimit {
        /// Which.
        resource: Resource,
    },
}

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It waits for a place.
    Queue,
    /// Its process is being made.
    Spawn,
    /// Its module is being imported.
    Import,
    /// The tool runs.
    Run,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody could tell.
    Unknown,
}

/// A limit of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Memory.
    Memory,
    /// Processor time.
    Cpu,
}

/// How the process of a run was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionMode {
    /// A new interpreter.
    Cold,
    /// Forked from a process that had the module imported.
    Zygote,
    /// Forked ahead of the call, and used once.
    Spare,
    /// Started and imported ahead of the call, and used once.
    Oneshot,
    /// A process that serves many calls: nothing keeps them apart.
    Persistent,
    /// A native executable.
    Native,
}

/// Captured output: the beginning and the end, where it was too long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// The text; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// How many bytes were written.
    pub total_bytes: u64,
    /// Whether the middle was left out.
    pub truncated: bool,
}

/// How long the parts of a run took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Until the process was ready for the call.
    pub start_us: u64,
    /// From the call to its answer.
    pub run_us: u64,
}

/// What a run used, as far as the system tells; of the whole tree where a control group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, in microseconds.
    pub cpu_us: Option<u64>,
    /// The most memory at once, in bytes.
    pub peak_memory_bytes: Option<u64>,
}
