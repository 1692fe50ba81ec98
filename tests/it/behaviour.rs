//! What users of gateways ask for and what no peer gets right: each test drives a fake server of `tests/rig`.

mod sessions;
