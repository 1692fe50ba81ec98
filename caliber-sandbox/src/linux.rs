//! The sandbox of Linux: namespaces, private root, Landlock, system call filter, limits, control groups.

mod bootstrap;
pub mod cgroup;
mod child;
pub mod confinement;
pub mod engine;
pub mod interpreter;
pub mod landlock;
pub mod launcher;
pub mod layers;
mod output;
mod prepared;
pub mod probe;
mod protocol;
mod seccomp;
pub mod spawn;
mod supervisor;
mod tool;
pub mod value;
