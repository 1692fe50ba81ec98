//! Hostile upstreams: each known attack of an upstream, staged with a fake server of `tests/rig`, and what a caller,
//! an operator and the rest of the installation see of it.
//!
//! The classes are P processes and configuration, T transport, J JSON and JSON-RPC, S schemas, L lists, names and
//! descriptions, C calls; SH-nn are public bug reports turned into tests. A test names what it stages in the first
//! words of its comment. Every run goes over a [`stage::Stage`], which asks the oracles.

mod calls;
mod json;
mod lists;
mod processes;
mod schemas;
mod stage;
mod transports;

use std::collections::BTreeSet;

/// What upstreams are known to do.
const STAGED: [&str; 53] = [
    "P1", "P2", "P4", "P5", "P6", "P7", "P8", "T3", "T4", "T6", "T7", "J1", "J2", "J3", "J4", "J5", "S1",
    "S2", "S3", "S4", "S5", "S6", "L1", "L2", "L3", "L4", "L5", "L7", "L8", "C1", "C2", "C3", "C4", "C5",
    "C7", "SH-01", "SH-02", "SH-03", "SH-04", "SH-05", "SH-06", "SH-07", "SH-08", "SH-09", "SH-10", "SH-11",
    "SH-12", "SH-13", "SH-14", "SH-15", "SH-19", "SH-20", "SH-21",
];

#[test]
fn every_class_and_report_has_a_test() {
    let sources = [
        include_str!("hostile/calls.rs"),
        include_str!("hostile/json.rs"),
        include_str!("hostile/lists.rs"),
        include_str!("hostile/processes.rs"),
        include_str!("hostile/schemas.rs"),
        include_str!("hostile/transports.rs"),
    ];
    let comments = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("/// "));
    let named: BTreeSet<&str> = comments
        .filter_map(|comment| comment.split_once(": "))
        .flat_map(|(ids, _)| ids.split(", "))
        .collect();
    let absent: Vec<_> = STAGED.iter().filter(|id| !named.contains(*id)).collect();
    assert!(absent.is_empty(), "no test names {absent:?}");
}
