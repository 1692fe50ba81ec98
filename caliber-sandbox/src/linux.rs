//! The sandbox of Linux: namespaces, private root, Landlock, system call filter, limits, control groups.

pub mod cgroup;
mod child;
pub mod confinement;
pub mod engine;
pub mod interpreter;
pub mod landlock;
pub mod launcher;
pub mod layers;
mod prepared;
pub mod probe;
mod seccomp;
pub mod spawn;
