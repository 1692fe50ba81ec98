//! Memory, disk, time and output.

use caliber_core::sandbox::{ExecutionMode, Exit, Phase, Resource, RunLimits, RunOutcome, RunStatus};
use serde_json::json;

use super::{Attack, Needs, attack};
use crate::attacks::control::Control;

const GIB: u64 = 1 << 30;

pub(super) fn attacks() -> Vec<Attack> {
    let memory = RunLimits {
        memory_bytes: Some(256 << 20),
        ..RunLimits::default()
    };
    vec![
        attack(39, "resources", "allocate")
            .more(json!({"bytes": 2 * GIB}))
            .ends("an error of the tool, or the limit of memory", is_out_of_memory),
        attack(39, "resources", "allocate_bytes")
            .more(json!({"bytes": 2 * GIB}))
            .ends("an error of the tool, or the limit of memory", is_out_of_memory),
        attack(40, "resources", "fork_memory")
            .more(json!({"count": 8, "bytes": 100 << 20, "limit": 256 << 20}))
            .limits(memory)
            .ends("the limit of memory, or held below it", |outcome| {
                is_limited(outcome, Resource::Memory) || answered(outcome, r#""together":"nothing""#)
            })
            .needs(Needs::ControlGroup),
        attack(41, "resources", "fill_scratch")
            .more(json!({"bytes": 160 << 20}))
            .needs(Needs::Namespaces),
        attack(41, "resources", "many_files")
            .more(json!({"count": 20_000}))
            .needs(Needs::Namespaces),
        attack(41, "resources", "large_file").may_be_killed(),
        runs_on(42, "loop"),
        runs_on(42, "loop_in_native_code"),
        runs_on(42, "loop_in_expression"),
        runs_on(43, "ignore_signals"),
        runs_on(43, "stop_itself"),
        runs_on(43, "block_signals_and_wait"),
        runs_on(42, "use_processor"),
        import("import_sleep", "the deadline while importing", is_late_import).timeout(1),
        import("import_loop", "the deadline while importing", is_late_import).timeout(1),
        import(
            "import_exit",
            "no result while importing, exit code 3",
            |outcome| {
                outcome.status
                    == RunStatus::NoResult {
                        phase: Phase::Import,
                        exit: Exit::Code(3),
                    }
            },
        )
        .control(Control::Silent(3)),
        import(
            "import_system_exit",
            "no result while importing, or an error of the tool",
            |outcome| {
                raised(outcome, "SystemExit")
                    || matches!(
                        outcome.status,
                        RunStatus::NoResult {
                            phase: Phase::Import,
                            ..
                        }
                    )
            },
        )
        .control(Control::Observed("the interpreter itself would end with code 0")),
        import("import_error", "an error of the tool", |outcome| {
            raised(outcome, "ValueError")
        })
        .control(Control::Observed("no attack: what a plain mistake looks like")),
        import("import_daemon", "a result", |outcome| answered(outcome, "works"))
            .control(Control::Survives)
            .needs(Needs::Namespaces),
        attack(45, "resources", "flood_output")
            .more(json!({"bytes": GIB}))
            .ends("a result, the output cut and counted", |outcome| {
                answered(outcome, "works") && is_cut(&outcome.stdout)
            })
            .control(Control::Observed("the whole gigabyte is counted")),
        attack(45, "resources", "flood_errors")
            .more(json!({"bytes": GIB}))
            .ends("a result, the output cut and counted", |outcome| {
                answered(outcome, "works") && is_cut(&outcome.stderr)
            })
            .control(Control::Observed("the whole gigabyte is counted")),
        attack(46, "resources", "leave_thread").control(Control::RunsOn),
        attack(46, "resources", "leave_exit_handler").control(Control::RunsOn),
        attack(63, "import_patches", "answer")
            .ends("any one way that the sandbox attests", |outcome| {
                !matches!(outcome.status, RunStatus::DeadlineExceeded { .. })
            })
            .control(Control::Naive("forged")),
        attack(64, "import_thread", "answer")
            .ends("a result, from no process that was forked", |outcome| {
                answered(outcome, "works")
                    && matches!(outcome.mode, ExecutionMode::Cold | ExecutionMode::Oneshot)
            })
            .control(Control::Observed("the mode of the outcome tells")),
    ]
}

fn runs_on(row: u8, callable: &'static str) -> Attack {
    attack(row, "resources", callable)
        .timeout(1)
        .ends("the deadline while running", |outcome| {
            matches!(
                outcome.status,
                RunStatus::DeadlineExceeded { phase: Phase::Run }
                    | RunStatus::ResourceLimit {
                        resource: Resource::Cpu
                    }
            )
        })
        .control(Control::RunsOn)
}

fn import(module: &'static str, text: &'static str, is: fn(&RunOutcome) -> bool) -> Attack {
    attack(44, module, "answer")
        .ends(text, is)
        .control(Control::RunsOn)
}

fn is_late_import(outcome: &RunOutcome) -> bool {
    outcome.status == RunStatus::DeadlineExceeded { phase: Phase::Import }
}

fn is_out_of_memory(outcome: &RunOutcome) -> bool {
    raised(outcome, "MemoryError") || raised(outcome, "OSError") || is_limited(outcome, Resource::Memory)
}

fn is_limited(outcome: &RunOutcome, wanted: Resource) -> bool {
    matches!(outcome.status, RunStatus::ResourceLimit { resource } if resource == wanted)
}

fn raised(outcome: &RunOutcome, wanted: &str) -> bool {
    matches!(&outcome.status, RunStatus::ToolError { error_type, .. } if error_type.contains(wanted))
}

fn answered(outcome: &RunOutcome, wanted: &str) -> bool {
    let wanted: String = wanted.split_whitespace().collect();
    matches!(&outcome.status, RunStatus::Ok { value }
        if value.as_str().split_whitespace().collect::<String>().contains(&wanted))
}

fn is_cut(output: &caliber_core::sandbox::Captured) -> bool {
    output.truncated && output.total_bytes == GIB && output.text.len() <= 70 << 10
}
