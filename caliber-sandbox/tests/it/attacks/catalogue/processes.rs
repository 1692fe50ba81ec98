//! Other processes.

use serde_json::json;

use super::{Attack, Needs, attack};
use crate::attacks::control::Control;
use crate::attacks::host::Touch;

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        attack(13, "processes", "read_processes"),
        attack(14, "processes", "trace").touches(&[Touch::VictimSignalled]),
        attack(15, "processes", "send_signals").touches(&[Touch::VictimSignalled]),
        attack(15, "processes", "signal_everybody").touches(&[Touch::VictimSignalled]),
        attack(15, "processes", "kill_everybody")
            .may_be_killed()
            .control(Control::Absent(
                "signal_everybody shows who is reached; this one would end the test itself",
            ))
            .needs(Needs::Namespaces),
        attack(16, "processes", "change_limits").touches(&[Touch::VictimLimits, Touch::VictimNice]),
        attack(17, "processes", "list_processes").needs(Needs::Namespaces),
        attack(18, "processes", "fork_bomb").more(json!({"count": 400, "plain_count": 64})),
        attack(19, "processes", "daemon")
            .control(Control::Survives)
            .needs(Needs::Namespaces),
        attack(20, "processes", "thread_bomb").more(json!({"count": 500})),
        attack(21, "processes", "daemon_with_output")
            .control(Control::Survives)
            .needs(Needs::Namespaces),
        attack(22, "processes", "set_user_id").except(&["user", "group"]),
        attack(65, "files", "inherited_descriptors"),
        attack(66, "processes", "attack_parents")
            .ends("any one way; the next call works", |_| true)
            .control(Control::Absent(
                "there is no process between a plain child and its parent; the next call is the proof",
            )),
    ]
}
