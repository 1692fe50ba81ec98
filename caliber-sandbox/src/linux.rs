//! The sandbox of Linux: namespaces, private root, Landlock, system call filter, limits, control groups.

pub mod cgroup;
pub mod confinement;
pub mod engine;
pub mod layers;
pub mod spawn;
