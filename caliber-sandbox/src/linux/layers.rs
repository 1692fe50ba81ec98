//! Which layers are used on this machine.

use caliber_core::sandbox::Guarantee;

/// The layers that children are built from, as the functional probe found them, and what that leaves open.
///
/// The engine applies each of these or fails the run: it never drops one by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Whether children get namespaces and a private root.
    pub namespaces: bool,
    /// Whether the process file system can be mounted in them.
    pub proc: bool,
    /// The version of Landlock that is applied; `None` for none.
    pub landlock: Option<u32>,
    /// Whether system calls are filtered.
    pub seccomp: bool,
    /// Whether calls get a control group.
    pub cgroups: bool,
    /// The required guarantees that do not hold: stamped on every outcome. Not empty only where an operator allows that.
    pub unenforced: Vec<Guarantee>,
}
