//! The surface of the kernel.

use super::{Attack, attack};
use crate::attacks::control::Control;
use crate::attacks::host::Touch;

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        // Devices and handles belong to the administrator of the machine.
        attack(31, "kernel", "namespaces")
            .in_own_namespace()
            .except(&["device", "by_handle"]),
        attack(32, "kernel", "programs_for_the_kernel").except(&[
            "bpf",
            "kexec",
            "load_module",
            "load_module_file",
            "unload_module",
        ]),
        attack(33, "kernel", "clone3"),
        attack(34, "kernel", "old_interrupt").may_be_killed(),
        attack(34, "kernel", "x32_numbers")
            .may_be_killed()
            .control(Control::Absent(
                "kernels are rarely built with the numbers of x32",
            )),
        attack(35, "kernel", "terminal").except(&["own_terminal"]),
        attack(36, "kernel", "clock_and_names")
            .in_own_namespace()
            .except(&["real_time", "less_nice"]),
        attack(37, "kernel", "execute").touches(&[Touch::Tcp]),
        // The number of processes is limited in most shells already.
        attack(38, "kernel", "raise_limits").except(&["processes"]),
    ]
}
