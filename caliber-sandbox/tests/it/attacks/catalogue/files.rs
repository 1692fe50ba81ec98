//! Files and secrets.

use super::{Attack, Needs, attack};
use crate::attacks::control::Control;
use crate::attacks::host::Touch;

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        // Only root reads the shadow file.
        attack(1, "files", "read_passwords").except(&["read_shadow"]),
        attack(2, "files", "reach_database").touches(&[Touch::Database]),
        // Landlock does not know these rights.
        attack(2, "files", "change_metadata")
            .touches(&[Touch::Private])
            .needs(Needs::Namespaces),
        attack(3, "files", "list_folders").except(&["root", "srv", "boot", "home", "opt"]),
        // The interpreter's folder belongs to root.
        attack(4, "files", "write_module").except(&["create_pth_of_interpreter"]),
        attack(7, "files", "leave_links").except(&["device"]),
        // The first process of the outer namespace belongs to root.
        attack(8, "files", "walk_out").except(&["init_root"]),
        attack(8, "files", "reach_beside"),
        attack(9, "files", "inherited_descriptors"),
        attack(10, "files", "environment"),
        attack(11, "files", "write_kernel_files").control(Control::Absent(
            "only the administrator of the machine could write them, and as that nothing hostile is run",
        )),
    ]
}
