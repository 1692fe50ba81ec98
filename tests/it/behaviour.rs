//! What users of gateways ask for and what no peer gets right: each test drives a fake server of `tests/rig`.

mod cancellation;
mod children;
mod concurrency;
mod fidelity;
mod lists;
mod names;
mod sessions;
mod sizes;
mod start_up;
