//! The network, and what processes share in the kernel.

use super::{Attack, attack};
use crate::attacks::host::Touch;

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        attack(23, "network", "tcp").touches(&[Touch::Tcp]),
        attack(23, "network", "tcp_listen"),
        attack(24, "network", "udp").touches(&[Touch::Udp]),
        // The outer world has no other interface either, and no route to anywhere else.
        attack(25, "network", "interfaces").except(&["other_interfaces", "anywhere"]),
        attack(26, "network", "abstract_socket").touches(&[Touch::AbstractSocket]),
        attack(27, "network", "path_socket").touches(&[Touch::PathSocket]),
        // The others need rights or modules.
        attack(28, "network", "odd_sockets").except(&[
            "netlink_audit",
            "packet",
            "raw",
            "algorithms",
            "xdp",
            "can",
            "bluetooth",
            "rds",
            "kcm",
            "tipc",
            "smc",
            "multipath",
        ]),
        attack(29, "network", "shared_kernel_objects"),
        attack(30, "network", "io_uring"),
    ]
}
