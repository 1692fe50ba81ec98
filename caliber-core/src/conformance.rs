//! The suites that every adapter of a port has to pass: ours and yours.
//!
//! Each suite is the contract of its port, clause by clause, in code. Call it from a test of your adapter:
//!
//! ```
//! use std::sync::Arc;
//! use caliber_core::conformance;
//! use caliber_core::memory::MemoryRegistry;
//! use caliber_core::registry::Registry;
//!
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! conformance::registry::run(async || Arc::new(MemoryRegistry::new()) as Arc<dyn Registry>).await;
//! # });
//! ```
//!
//! A suite runs all of its cases and then panics with the names of those that failed; each name is the clause
//! that was violated. Run it on a multi-thread runtime: several cases are races.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a violated clause is told by a panic, as in every test"
)]

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

pub mod gateway;
pub mod policy;
pub mod process;
pub mod quota;
pub mod registry;
pub mod sandbox;
pub mod secrets;

mod samples;

/// The longest that one case may take: what hangs has failed.
const CASE_TIME: Duration = Duration::from_secs(60);

type CaseFuture = Pin<Box<dyn Future<Output = ()>>>;

/// One clause of a contract, over what it is tried on.
pub struct Case<T> {
    /// The clause.
    pub name: &'static str,
    check: fn(T) -> CaseFuture,
}

impl<T> Case<T> {
    /// Tries the clause.
    ///
    /// # Panics
    ///
    /// When it is violated.
    pub async fn run(&self, subject: T) {
        (self.check)(subject).await;
    }
}

impl<T> std::fmt::Debug for Case<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Case").field(&self.name).finish()
    }
}

/// The cases of a suite: each is an async function whose name says the clause.
macro_rules! cases {
    ($($module:ident :: { $($name:ident),* $(,)? }),* $(,)?) => {
        vec![$($($crate::conformance::Case {
            name: stringify!($name),
            check: |subject| Box::pin($module::$name(subject)),
        }),*),*]
    };
}
use cases;

/// Runs every case on a subject of its own, then reports all that failed.
async fn run_all<T>(cases: Vec<Case<T>>, make: impl AsyncFn() -> T) {
    let mut failures = Vec::new();
    for case in &cases {
        let subject = make().await;
        let outcome = tokio::time::timeout(CASE_TIME, caught((case.check)(subject))).await;
        let failure = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(panic)) => message(panic.as_ref()),
            Err(_) => format!("it did not end within {} s", CASE_TIME.as_secs()),
        };
        failures.push(format!("{}: {failure}", case.name));
    }
    assert!(
        failures.is_empty(),
        "{} of {} clauses are violated:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

/// The end of `check`, or its panic.
async fn caught(mut check: CaseFuture) -> std::thread::Result<()> {
    std::future::poll_fn(move |context| {
        let poll = AssertUnwindSafe(|| check.as_mut().poll(context));
        match std::panic::catch_unwind(poll) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}
