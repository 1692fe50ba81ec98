//! Processes that are kept for calls to come: making them ahead, how many there are, and ending those that nobody uses.

use std::time::Instant;

use caliber_core::sandbox::{ExecutionMode, Phase, RunStatus};

use super::Supervisor;
use super::run::{Owner, Progress, Run};
use super::zygote::{self, Zygote};

impl Supervisor {
    /// Makes processes ahead of the next call of a key that is called often.
    pub(super) fn make_standby(&mut self, key: &super::Key, was_called: bool) {
        if self.closing || !was_called || self.shared.settings.spares == 0 {
            return;
        }
        let idle = self.shared.settings.zygote_idle;
        let Some(habit) = self.habits.get(key) else {
            return;
        };
        if habit.calls < 2 || !habit.is_recent(Instant::now(), idle) {
            return;
        }
        let has = self.standby.get(key).map_or(0, std::collections::VecDeque::len);
        if habit.not_forked.is_some() {
            if has == 0 {
                self.make_oneshot(key);
            }
            return;
        }
        let Some(zygote) = self.by_key.get(key).copied() else {
            return;
        };
        for _ in has..self.shared.settings.spares {
            if !self
                .zygotes
                .get(&zygote)
                .is_some_and(|zygote| zygote.has_room() && zygote.waiting.is_empty())
            {
                return;
            }
            match self.fork(zygote, ExecutionMode::Spare) {
                Ok(run) => self.standby.entry(key.clone()).or_default().push_back(run),
                Err(error) => {
                    tracing::debug!(%error, "a process could not be made ahead of its call");
                    return;
                }
            }
        }
    }

    /// A process that was made ahead of its call is ready: nothing to do but to keep it.
    pub(super) fn offer_standby(&mut self, id: u64) {
        let Some(run) = self.runs.get(&id) else {
            return;
        };
        if run.job.is_some() || run.progress != Progress::Ready {
            return;
        }
        let key = run.key.clone();
        let standby = self.standby.entry(key).or_default();
        if !standby.contains(&id) {
            standby.push_back(id);
        }
    }

    /// Starts and imports a process ahead of the next call, which is the only one it will serve.
    pub(super) fn make_oneshot(&mut self, key: &super::Key) {
        let Some((program, limits)) = self.programs.get(key).cloned() else {
            return;
        };
        if !self.make_room() {
            return;
        }
        match self.make_run(key.clone(), &program, limits, ExecutionMode::Oneshot, None) {
            Ok(run) => self.standby.entry(key.clone()).or_default().push_back(run),
            Err(error) => tracing::debug!(%error, "a process could not be made ahead of its call"),
        }
    }

    /// Whether another process may be kept for further calls, after the least used idle one was ended where there were too
    /// many.
    pub(super) fn make_room(&mut self) -> bool {
        self.kept() < self.shared.settings.zygotes || self.end_least_used()
    }

    /// Processes that are kept for calls to come, whatever they are; what a zygote has forked is part of it.
    pub(super) fn kept(&self) -> usize {
        self.zygotes.len() + self.runs.values().filter(|run| run.is_kept()).count()
    }

    /// Ends the idle process that was not used for longest; `false` when there is none.
    pub(super) fn end_least_used(&mut self) -> bool {
        let zygote = self
            .zygotes
            .iter()
            .filter(|(id, zygote)| !self.is_in_use(**id, zygote))
            .map(|(id, zygote)| (zygote.last_used, *id))
            .min();
        let run = self
            .runs
            .iter()
            .filter(|(_, run)| run.is_kept())
            .map(|(id, run)| (run.since, *id))
            .min();
        match (zygote, run) {
            (Some(zygote), run) if run.is_none_or(|run| zygote < run) => {
                self.end_zygote(zygote.1, &|| Err(super::closed()));
            }
            (_, Some((_, run))) => self.finish(run, Err(super::closed())),
            _ => return false,
        }
        true
    }

    /// Whether the next call may find no id but will: then a process is about to end, by now at the latest.
    pub(super) fn waits_for_id(&mut self) -> bool {
        let is_about_to_be_free =
            |supervisor: &Self| supervisor.leaving.values().any(|leaving| leaving.id.is_some());
        if !self.ids.are_short() {
            return false;
        }
        if !is_about_to_be_free(self) {
            self.end_least_used();
        }
        self.ids.are_short() && is_about_to_be_free(self)
    }

    /// Whether somebody waits for a zygote, or for a call that it runs.
    pub(super) fn is_in_use(&self, id: u64, zygote: &Zygote) -> bool {
        let runs_call = |run: &Run| {
            run.job.is_some() && matches!(run.owner, Owner::Forked { zygote: of, .. } if of == id)
        };
        !zygote.waiting.is_empty() || self.runs.values().any(runs_call)
    }

    /// Ends what has been idle for too long.
    pub(super) fn expire_idle(&mut self, now: Instant) {
        let idle = self.shared.settings.zygote_idle;
        let over: Vec<u64> = self
            .zygotes
            .iter()
            .filter(|(id, zygote)| match zygote.state {
                zygote::State::Ready => {
                    let unused = now >= zygote.last_used + idle;
                    (unused || zygote.retired) && !self.is_in_use(**id, zygote)
                }
                // Nothing of a call that has been answered goes on, its import included.
                _ => now >= zygote.import_until || zygote.waiting.is_empty(),
            })
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            let phase = if self
                .zygotes
                .get(&id)
                .is_some_and(|zygote| zygote.state == zygote::State::Made)
            {
                Phase::Spawn
            } else {
                Phase::Import
            };
            self.end_zygote_with(id, &|| RunStatus::DeadlineExceeded { phase });
        }
        let unused: Vec<u64> = self
            .runs
            .iter()
            .filter(|(_, run)| run.job.is_none() && now >= run.since + idle)
            .map(|(id, _)| *id)
            .collect();
        for id in unused {
            self.finish(id, Err(super::closed()));
        }
    }
}
