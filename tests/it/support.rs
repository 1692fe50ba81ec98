//! What the end-to-end tests stand on. A test reads like this:
//!
//! ```text
//! #[test]
//! fn a_dripping_answer_ends_at_the_deadline() {
//!     isolated(|| async {
//!         let rig = Rig::open().await;
//!         let watch = Watch::start(&rig).await;
//!         let upstream = Upstream::start(Transport::Http, &["--mode", "drip"]).await;
//!         let server = rig.admit("hostile", upstream.endpoint()).await;
//!         let request = server.request("echo", json!({ "value": 1 })).within(SECOND);
//!         let error = ends_within(SECOND, server.send(&rig.ada, request)).await.unwrap_err();
//!         assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
//!         assert_ledger(&server, &[InvocationOutcome::OutcomeUnknown]).await;
//!         assert_executions(&upstream, 1);
//!         server.remove().await;
//!         watch.finish().await;
//!     });
//! }
//! ```
//!
//! | part | what it gives |
//! |---|---|
//! | [`Rig`] | an installation on a temporary folder, with an administrator and two callers, `ada` and `ben` |
//! | [`Server`] | one registered server: discover, classify, call, read its ledger |
//! | [`Upstream`] | one fake server of `tests/rig`, over any transport: its endpoint, its records, its controls |
//! | [`Watch`] | the oracles that need a baseline: liveness, memory, leaks |
//! | [`oracles`] | the other oracles, as functions |
//! | [`isolated`] | a process of its own for one test, which [`Watch`] needs, and which a stack overflow ends alone |
//! | [`Api`] | the operator API of a rig, served on loopback, with a token |
//! | [`command`] | the `caliber` command, on a database and with settings of its own |
//! | [`peers`] | the official servers, and the rule about those that are not installed |
//! | [`logs`] | what is logged, kept as text |
//!
//! Rules. A test waits for a condition ([`eventually`]), never for time to pass. It asserts no time but the
//! deadlines that are promised. Everything that it starts is ended by its process id when the value is dropped.

mod api;
mod direct;
mod http;
mod isolation;
mod machine;
pub(crate) mod rig;
mod server;
mod upstream;
mod waiting;
mod watch;

pub(crate) mod command;
pub(crate) mod logs;
pub(crate) mod oracles;
pub(crate) mod peers;

pub(crate) use api::Api;
pub(crate) use direct::Direct;
pub(crate) use http::{Client, Reply};
pub(crate) use isolation::isolated;
pub(crate) use machine::{descendants, is_running, processes_with, signal};
pub(crate) use oracles::{
    assert_absent, assert_executions, assert_ledger, assert_no_cross_talk, ends_within, outcomes,
};
pub(crate) use rig::Rig;
pub(crate) use server::{RequestExt, Server, level_of, policy_for, structured, text};
pub(crate) use upstream::{Transport, Upstream};
pub(crate) use waiting::{SECOND, at_once, eventually, eventually_within};
pub(crate) use watch::Watch;
