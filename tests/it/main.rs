//! The control plane as a whole: against real servers, hostile servers, and through the command.

mod architecture;
mod behaviour;
mod canaries;
mod cli;
mod config;
mod hostile;
mod peers;
mod race;
mod support;
