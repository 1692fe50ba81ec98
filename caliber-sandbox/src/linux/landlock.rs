//! Landlock: which rights this kernel's version knows.

use landlock::{ABI, Access, AccessFs, AccessNet, Scope};

/// The version of Landlock that the kernel offers; `None` when it offers none.
pub fn version() -> Option<u32> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with a null attribute and size zero the call reads no memory and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// The first argument of `landlock_create_ruleset`, of the versions that know scopes; older ones read less of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ruleset {
    pub(crate) filesystem: u64,
    pub(crate) network: u64,
    pub(crate) scoped: u64,
}

/// The argument of `landlock_add_rule` for what lies beneath a folder; packed, as the kernel's is.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beneath {
    pub(crate) allowed: u64,
    pub(crate) parent: i32,
}

/// The rights of one domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    /// What is handled: refused unless a rule grants it.
    pub(crate) ruleset: Ruleset,
    /// How much of [`Ruleset`] this version reads.
    pub(crate) ruleset_size: usize,
    /// What may be done with something readable.
    pub(crate) read: u64,
    /// What may be done with something writable.
    pub(crate) write: u64,
    /// Which of these make sense for a file that is no folder.
    pub(crate) file: u64,
}

impl Rights {
    /// All rights of a version, those of the network only where it is refused.
    pub(crate) fn of(version: u32, network: bool) -> Self {
        let abi = ABI::from(i32::try_from(version).unwrap_or(i32::MAX));
        let filesystem = AccessFs::from_all(abi);
        let handled_network = if network {
            0
        } else {
            AccessNet::from_all(abi).bits()
        };
        let read = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
        let never_written = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock;
        Self {
            ruleset: Ruleset {
                filesystem: filesystem.bits(),
                network: handled_network,
                scoped: Scope::from_all(abi).bits(),
            },
            ruleset_size: match version {
                0..=3 => 8,
                4 | 5 => 16,
                _ => 24,
            },
            read: (filesystem & read).bits(),
            write: (filesystem & !never_written).bits(),
            file: (filesystem & AccessFs::from_file(abi)).bits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_versions_handle_more_and_grant_no_more_than_they_handle() {
        let mut before = Rights::of(1, false);
        for version in 2..=10 {
            let rights = Rights::of(version, false);
            assert_eq!(
                rights.ruleset.filesystem & before.ruleset.filesystem,
                before.ruleset.filesystem
            );
            assert_eq!((rights.read | rights.write) & !rights.ruleset.filesystem, 0);
            before = rights;
        }
        assert_eq!(before.ruleset.scoped, 3);
        assert_eq!(Rights::of(3, false).ruleset_size, 8);
    }

    #[test]
    fn what_is_written_is_not_executed() {
        let rights = Rights::of(7, false);
        assert_eq!(rights.write & 1, 0);
        assert_eq!(rights.read & 0b10, 0);
        assert_ne!(rights.ruleset.network, 0);
        assert_eq!(Rights::of(7, true).ruleset.network, 0);
    }
}
