//! The way that a result takes.

use caliber_core::sandbox::{Exit, Phase, RunOutcome, RunStatus};

use super::{Attack, attack};
use crate::attacks::control::Control;

/// An answer that is not allowed is itself the proof that it was tried.
const SEEN: Control = Control::Observed("the outcome tells that it was tried");

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        result(
            47,
            "fake_on_output",
            "the real result, the forged one as output",
            |outcome| is_value(outcome, r#"{"result":"works"}"#) && outcome.stdout.text.contains("forged"),
        )
        .control(Control::Output("forged")),
        result(48, "wrong_nonce", "a violation", is_violation),
        result(49, "forged_then_real", "a violation", is_violation),
        result(50, "oversize", "a violation or too large", |outcome| {
            is_violation(outcome) || is_too_large(outcome)
        }),
        result(50, "oversize_with_nonce", "too large", is_too_large),
        result(51, "one_byte_then_stall", "the deadline", |outcome| {
            matches!(outcome.status, RunStatus::DeadlineExceeded { phase: Phase::Run })
        })
        .timeout(1),
        result(51, "garbage", "a violation or too large", |outcome| {
            is_violation(outcome) || is_too_large(outcome)
        }),
        result(51, "garbage_then_exit", "a violation or too large", |outcome| {
            is_violation(outcome) || is_too_large(outcome)
        }),
        result(51, "partial_then_exit", "a violation or no result", |outcome| {
            is_violation(outcome) || is_exit(outcome, Exit::Code(0))
        }),
        result(51, "unknown_type", "a violation", is_violation),
        result(51, "no_json", "no valid result", |outcome| {
            is_violation(outcome) || is_invalid(outcome)
        }),
        result(52, "close_output", "the result", |outcome| {
            is_value(outcome, r#"{"result":"works"}"#)
        }),
        result(52, "close_everything", "no result", |outcome| {
            matches!(
                outcome.status,
                RunStatus::NoResult {
                    phase: Phase::Run,
                    ..
                }
            )
        }),
        result(52, "shut_down_socket", "no result", |outcome| {
            matches!(
                outcome.status,
                RunStatus::NoResult {
                    phase: Phase::Run,
                    ..
                }
            )
        }),
        result(53, "exit_silently", "no result, exit code 0", |outcome| {
            is_exit(outcome, Exit::Code(0))
        })
        .control(Control::Silent(0)),
        result(53, "exit_with_code", "no result, exit code 77", |outcome| {
            is_exit(outcome, Exit::Code(77))
        })
        .control(Control::Silent(77)),
        result(53, "segmentation_fault", "no result, SIGSEGV", |outcome| {
            is_exit(outcome, Exit::Signal(11))
        }),
        // The first process of a namespace can be ended by the kernel only, which says it in its own way.
        result(53, "abort", "no result, a signal", |outcome| {
            is_exit(outcome, Exit::Signal(6)) || is_exit(outcome, Exit::Signal(11))
        }),
        // It ignores its own signals, and runs on.
        result(
            53,
            "end_itself",
            "no result, SIGKILL, or the deadline",
            |outcome| {
                is_exit(outcome, Exit::Signal(9))
                    || outcome.status == RunStatus::DeadlineExceeded { phase: Phase::Run }
            },
        )
        .timeout(1),
        result(54, "not_a_number", "an invalid result", is_invalid).control(Control::Naive("NaN")),
        result(54, "infinite", "an invalid result", is_invalid).control(Control::Naive("Infinity")),
        result(54, "negative_infinite", "an invalid result", is_invalid).control(Control::Naive("-Infinity")),
        result(
            55,
            "two_to_the_64",
            "the same number or an invalid result",
            |outcome| is_value(outcome, "18446744073709551616") || is_invalid(outcome),
        ),
        result(55, "largest_integer", "the same number", |outcome| {
            is_value(outcome, "18446744073709551615")
        }),
        result(55, "smallest_integer", "the same number", |outcome| {
            is_value(outcome, "-9223372036854775808")
        }),
        result(
            55,
            "below_smallest_integer",
            "the same number or an invalid result",
            |outcome| is_value(outcome, "-9223372036854775809") || is_invalid(outcome),
        ),
        result(55, "huge_integer", "an invalid result", is_invalid).control(Control::Naive("000000")),
        result(55, "unprintable_integer", "an invalid result", is_invalid),
        result(56, "depth_900", "an invalid result", is_invalid),
        result(56, "depth_100000", "an invalid result", is_invalid),
        result(57, "lone_surrogate", "an invalid result", is_invalid).control(Control::Naive("\\ud800")),
        result(57, "lone_surrogate_key", "an invalid result", is_invalid).control(Control::Naive("\\udfff")),
        result(58, "duplicate_keys", "an invalid result", is_invalid)
            .control(Control::Naive(r#"{"1": "a", "1": "b"}"#)),
        result(59, "some_bytes", "an invalid result", is_invalid),
        result(59, "tuple_keys", "an invalid result", is_invalid),
        result(59, "circular", "an invalid result", is_invalid),
        result(59, "too_large", "too large", is_too_large),
        result(
            60,
            "hostile_mapping",
            "an error of the tool or an invalid result",
            |outcome| is_tool_error(outcome, "") || is_invalid(outcome),
        ),
        result(60, "hostile_message", "an error of the tool", |outcome| {
            is_tool_error(outcome, "_Unprintable")
        }),
        result(60, "recursive_message", "an error of the tool", |outcome| {
            is_tool_error(outcome, "_Recursive")
        }),
        result(60, "nameless", "an error of the tool", |outcome| {
            is_tool_error(outcome, "")
        }),
        result(60, "change_class_of_result", "any one way", |_| true),
        result(61, "system_exit", "an error of the tool", |outcome| {
            is_tool_error(outcome, "SystemExit")
        }),
        result(61, "keyboard_interrupt", "an error of the tool", |outcome| {
            is_tool_error(outcome, "KeyboardInterrupt")
        }),
        result(61, "generator_exit", "an error of the tool", |outcome| {
            is_tool_error(outcome, "GeneratorExit")
        }),
        result(61, "strange", "an error of the tool", |outcome| {
            is_tool_error(outcome, "Strange")
        }),
        result(61, "memory_error_message", "an error of the tool", |outcome| {
            is_tool_error(outcome, "MemoryError")
        }),
        result(
            62,
            "long_message",
            "an error of the tool, its text cut",
            |outcome| is_tool_error(outcome, "ValueError"),
        ),
    ]
}

fn result(row: u8, callable: &'static str, text: &'static str, is: fn(&RunOutcome) -> bool) -> Attack {
    attack(row, "results", callable).ends(text, is).control(SEEN)
}

fn is_value(outcome: &RunOutcome, wanted: &str) -> bool {
    matches!(&outcome.status, RunStatus::Ok { value } if value.as_str() == wanted)
}

fn is_violation(outcome: &RunOutcome) -> bool {
    matches!(outcome.status, RunStatus::ProtocolViolation { .. })
}

fn is_too_large(outcome: &RunOutcome) -> bool {
    matches!(outcome.status, RunStatus::ResultTooLarge { .. })
}

fn is_invalid(outcome: &RunOutcome) -> bool {
    matches!(outcome.status, RunStatus::ResultInvalid { .. })
}

fn is_exit(outcome: &RunOutcome, wanted: Exit) -> bool {
    matches!(outcome.status, RunStatus::NoResult { phase: Phase::Run, exit } if exit == wanted)
}

/// An error whose type contains `wanted`, with a text that is short enough to show.
fn is_tool_error(outcome: &RunOutcome, wanted: &str) -> bool {
    matches!(&outcome.status, RunStatus::ToolError { error_type, message }
        if error_type.contains(wanted) && error_type.len() <= 1024 && message.len() <= 64 << 10)
}
