//! What goes on without being asked for: refreshes, sweeps, retention. Only inside [`Caliber::run`].

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Caliber, export, to_the_end};
use crate::audit::AuditAction;
use crate::clock::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::principal::{Principal, Surface};
use crate::registry::{Change, Commit, Expect, Retention};

/// Orphaned calls settled by one sweep.
const SWEEP_LIMIT: u32 = 1_000;
/// The shortest time between two sweeps, whatever the settings say.
const SWEEP_FLOOR: Duration = Duration::from_millis(10);
/// How often old records are removed.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60 * 60);

impl Caliber {
    /// Does the background work until `cancel`, then writes waiting records and ends every session within
    /// `grace`. Without it calls are just as safe, but inventories refresh only when a call stumbles over a
    /// change, and orphaned calls stay open.
    ///
    /// # Errors
    ///
    /// `Unavailable` when waiting records could not be written within `grace`.
    pub async fn run(&self, cancel: CancellationToken, grace: Duration) -> Result<()> {
        let mut sweep = tokio::time::interval(self.inner.settings.sweep_interval.max(SWEEP_FLOOR));
        let mut prune = tokio::time::interval(PRUNE_INTERVAL);
        for interval in [&mut sweep, &mut prune] {
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        loop {
            let turn = async {
                tokio::select! {
                    listing = self.inner.gateway.next_listing() => {
                        self.inner.listings.note(listing);
                        self.inner.apply_listings().await
                    }
                    _ = sweep.tick() => {
                        let applied = self.inner.apply_listings().await;
                        self.sweep_orphans().await.map(drop).and(applied)
                    }
                    _ = prune.tick() => self.prune().await.map(drop),
                }
            };
            // Every step can be dropped: what a commit does goes on without us, and a listing stays noted.
            let outcome = tokio::select! {
                () = cancel.cancelled() => break,
                outcome = turn => outcome,
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, "background work failed; it is tried again");
            }
        }
        self.close(grace).await
    }

    /// Ends every session, and the sandbox with every run, within three quarters of `grace`; what is left is for the calls to record their ends,
    /// and for writing what waits.
    ///
    /// # Errors
    ///
    /// `Unavailable` when waiting records could not be written within `grace`.
    pub async fn close(&self, grace: Duration) -> Result<()> {
        let (sessions, records) = (Deadline::after(grace.mul_f32(0.75)), Deadline::after(grace));
        let sandbox = async {
            if let Some(sandbox) = &self.inner.sandbox {
                sandbox.close(sessions).await;
            }
        };
        tokio::join!(self.inner.gateway.close(sessions), sandbox);
        let finish = async {
            self.inner.calls_ended().await;
            self.inner.flush_records().await
        };
        match tokio::time::timeout_at(records.instant(), finish).await {
            Ok(flushed) => flushed,
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "call records could not be written within the grace period",
            )),
        }
    }

    /// Settles calls whose lease has run out as unknown; returns how many.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the store is away.
    pub async fn sweep_orphans(&self) -> Result<u64> {
        self.sweep(
            AuditAction::SettleOrphans,
            Change::SettleOrphans { limit: SWEEP_LIMIT },
        )
        .await
    }

    /// Removes records that are older than the settings keep them; returns how many.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the store is away.
    pub async fn prune(&self) -> Result<u64> {
        let settings = &self.inner.settings;
        let before = |keep: Duration| {
            chrono::Duration::from_std(keep)
                .ok()
                .and_then(|keep| self.inner.now().checked_sub_signed(keep))
        };
        let change = Change::Prune(Retention {
            invocations_before: before(settings.keep_invocations),
            audit_before: settings.keep_audit.and_then(before),
            approvals_before: before(settings.keep_invocations),
            tokens_before: before(settings.keep_invocations),
        });
        self.sweep(AuditAction::Prune, change).await
    }

    /// The entry of a sweep is kept by the store, and exported, only when the sweep touched something.
    async fn sweep(&self, action: AuditAction, change: Change) -> Result<u64> {
        let inner = &self.inner;
        let system = Principal::system();
        let entity = ("installation", "installation");
        let who = (&system, Surface::System);
        let audit = inner.entry(who, action, entity, None, serde_json::json!({}))?;
        let commit = Commit {
            change,
            expect: Expect::nothing(),
            audit: audit.clone(),
        };
        let (registry, sinks) = (Arc::clone(&inner.registry), inner.sinks.clone());
        to_the_end(async move {
            let affected = registry.commit(commit).await?.affected;
            if affected > 0 {
                export(&sinks, &audit);
            }
            Ok(affected)
        })
        .await
    }
}
