//! How runs end, and what is left to do when they have.

use std::time::Instant;

use caliber_core::Error;
use caliber_core::sandbox::{ExecutionMode, Exit, Phase, Resource, RunStatus, Usage};

use super::answer::{Answer, End};
use super::channel::not_set_up;
use super::run::{Owner, Progress, Run, Speech};
use super::{Leaving, Part, SETTLE, Supervisor, Token, exit_of, zygote};

impl Supervisor {
    /// Answers the call of a run, kills its processes, and lets it go.
    pub(super) fn finish(&mut self, id: u64, end: Result<End, Error>) {
        let Some(mut run) = self.runs.remove(&id) else {
            return;
        };
        // First the end of everything that could act, then the answer.
        run.kill();
        if let Some(waiting) = self.standby.get_mut(&run.key) {
            waiting.retain(|standby| *standby != id);
        }
        self.standby.retain(|_, waiting| !waiting.is_empty());
        run.stdout.drain();
        run.stderr.drain();
        let usage = usage_of(&run);
        let job = run.job.take();
        let holds_place = job.is_some();
        if let Owner::Forked { zygote, .. } = &run.owner
            && let Some(zygote) = self.zygotes.get_mut(zygote)
            && holds_place
        {
            zygote.last_used = Instant::now();
        }
        if let Some(job) = job {
            let answer = end.map(|end| run.answer(end, &self.shared.layers, usage));
            (job.reply)(answer);
        }
        let key = run.key.clone();
        self.let_go(id, run, holds_place);
        self.make_standby(&key, holds_place);
    }

    /// Answers the call of a process that serves further ones.
    pub(super) fn finish_one_of_many(&mut self, id: u64, end: End) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        run.stdout.drain();
        run.stderr.drain();
        let usage = usage_of(run);
        let Some(job) = run.job.take() else {
            return;
        };
        let answer = run.answer(end, &self.shared.layers, usage);
        run.progress = Progress::Ready;
        run.called = None;
        run.settle_at = None;
        run.since = Instant::now();
        // What it says between calls is of no call.
        run.stdout.capture = super::super::output::Capture::new(self.shared.settings.output_bytes);
        run.stderr.capture = super::super::output::Capture::new(self.shared.settings.output_bytes);
        self.active = self.active.saturating_sub(1);
        let key = run.key.clone();
        (job.reply)(Ok(answer));
        self.standby.entry(key).or_default().push_back(id);
        while self.kept() > self.shared.settings.zygotes && self.end_least_used() {}
    }

    /// Keeps what must stay until the processes have ended.
    fn let_go(&mut self, id: u64, run: Run, holds_place: bool) {
        let Run {
            owner,
            group,
            id: uid,
            ..
        } = run;
        let has_ended = match &owner {
            Owner::Starting(_) | Owner::Child(_) => false,
            // One that was not told yet ends by itself when it finds its channel closed; it has run nothing.
            Owner::Forked { pidfd, .. } => pidfd.is_none(),
        };
        if has_ended {
            self.ids.give_back(uid);
            if holds_place {
                self.active = self.active.saturating_sub(1);
            }
            return;
        }
        let leaving = Leaving {
            owner,
            _group: group,
            id: uid,
            holds_place,
        };
        self.leaving.insert(id, leaving);
        // It may have ended already, and its end been noticed.
        self.left(id);
    }

    /// A process that was let go may have ended: then its place and its id are free.
    pub(super) fn left(&mut self, id: u64) {
        let Some(leaving) = self.leaving.get_mut(&id) else {
            return;
        };
        let has_ended = match &mut leaving.owner {
            // Between clone and exec: it is killed all the same.
            Owner::Starting(starting) => starting.collect(),
            Owner::Child(child) => child.collect().map_or(true, |status| status.is_some()),
            Owner::Forked { zygote, pidfd } => {
                let zygote = *zygote;
                pidfd.as_ref().is_none_or(is_readable)
                    || !self.zygotes.contains_key(&zygote) && !self.leaving.contains_key(&zygote)
            }
        };
        if !has_ended {
            return;
        }
        let Some(leaving) = self.leaving.remove(&id) else {
            return;
        };
        self.ids.give_back(leaving.id);
        if leaving.holds_place {
            self.active = self.active.saturating_sub(1);
        }
        // The first process of a namespace ends when everything in it has: nothing is left that a zygote forked,
        // whatever its descriptors say.
        let forked: Vec<u64> = self
            .leaving
            .iter()
            .filter(|(_, leaving)| matches!(leaving.owner, Owner::Forked { zygote, .. } if zygote == id))
            .map(|(id, _)| *id)
            .collect();
        for id in forked {
            self.left(id);
        }
    }

    /// The process of a run has ended.
    pub(super) fn run_process_ended(&mut self, id: u64) {
        self.read_the_rest(id);
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if let Some(status) = run.end.take() {
            self.finish(id, Ok(status));
            return;
        }
        match &mut run.owner {
            Owner::Starting(_) => {
                // Its status pipe says which step failed.
                self.run_started(id);
                if self
                    .runs
                    .get(&id)
                    .is_some_and(|run| matches!(run.owner, Owner::Child(_)))
                {
                    self.run_process_ended(id);
                }
            }
            Owner::Child(child) => {
                let exit = exit_of(child);
                self.finish_without_frame(id, exit);
            }
            Owner::Forked { pidfd, .. } => {
                if let Some(pidfd) = pidfd {
                    self.poller.remove(&*pidfd);
                }
                // The process that forked it collects it and tells; then the kernel tells, too.
                run.settle_at = Some(Instant::now() + SETTLE);
            }
        }
    }

    /// A run whose channel is closed: its process is about to end, or has.
    pub(super) fn run_may_have_ended(&mut self, id: u64) {
        let ended = match self.runs.get(&id).map(|run| &run.owner) {
            Some(Owner::Child(child)) => is_readable(&child.pidfd()),
            _ => false,
        };
        if ended {
            self.run_process_ended(id);
        }
    }

    /// Begins the call of a process that did not come to be in a process of its own, which has every layer as well. A call
    /// that was told nothing has run nothing; one that was told is not begun again.
    pub(super) fn begin_again(&mut self, id: u64) -> bool {
        let Some(run) = self.runs.get_mut(&id) else {
            return false;
        };
        if run.progress == Progress::Called || self.closing {
            return false;
        }
        let Some(job) = run.job.take() else {
            return false;
        };
        let (key, limits) = (run.key.clone(), run.limits);
        self.finish(id, Err(super::closed()));
        self.begin_in_new_process(key, limits, job, ExecutionMode::Cold);
        true
    }

    fn finish_without_frame(&mut self, id: u64, exit: Exit) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if run.speech == Speech::Json && exit == Exit::Code(0) {
            run.stdout_value();
            let limit = run.limits.result_bytes;
            let value = std::mem::take(&mut run.value);
            let end = if value.len() as u64 > limit {
                RunStatus::ResultTooLarge { limit }.into()
            } else {
                End::Value(value)
            };
            self.finish(id, Ok(end));
            return;
        }
        let usage = run.group.as_ref().map(super::Group::usage).unwrap_or_default();
        let was_killed = matches!(exit, Exit::Signal(libc::SIGKILL | libc::SIGXCPU));
        let spent =
            |cpu: Option<u64>| cpu.is_some_and(|cpu| cpu >= run.cpu_seconds.saturating_mul(1_000_000));
        // Where nobody saw how it ended, what the kernel killed in its group is the better guess.
        let status = if usage.memory_kills > 0 && (was_killed || exit == Exit::Unknown) {
            RunStatus::ResourceLimit {
                resource: Resource::Memory,
            }
        } else if exit == Exit::Signal(libc::SIGXCPU)
            || was_killed && run.cpu_seconds > 0 && spent(usage.cpu_us)
        {
            RunStatus::ResourceLimit {
                resource: Resource::Cpu,
            }
        } else if run.progress == Progress::Made {
            let error = not_set_up(run.mode, exit);
            if run.job.is_some() {
                let output = run.stderr_text();
                tracing::warn!(?exit, output, "a child ended before it was set up");
            }
            self.finish(id, Err(error));
            return;
        } else {
            RunStatus::NoResult {
                phase: run.phase(),
                exit,
            }
        };
        self.finish(id, Ok(status.into()));
    }

    /// A forked call was collected by the process that made it.
    pub(super) fn forked_has_ended(&mut self, id: u64, status: i32) {
        self.read_the_rest(id);
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if let Some(end) = run.end.take() {
            self.finish(id, Ok(end));
            return;
        }
        let attested = match &run.owner {
            Owner::Forked {
                pidfd: Some(pidfd), ..
            } => {
                use std::os::fd::AsFd;
                zygote::exit_status(pidfd.as_fd())
            }
            _ => None,
        };
        let status = attested.unwrap_or(status);
        let exit = if libc::WIFSIGNALED(status) {
            Exit::Signal(libc::WTERMSIG(status))
        } else {
            Exit::Code(libc::WEXITSTATUS(status))
        };
        self.finish_without_frame(id, exit);
    }

    /// A run whose deadline has passed, or that has waited long enough for its process to close the channel.
    pub(super) fn run_is_overdue(&mut self, id: u64) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        // A result that is there, or a process that has ended, came in time: the deadline is not about what is left to do.
        if run.end.is_some() || run.settle_at.is_some() {
            run.settle_at = None;
            match run.end.take() {
                Some(status) => self.finish(id, Ok(status)),
                None => self.finish_without_frame(id, Exit::Unknown),
            }
            return;
        }
        let phase = match run.phase() {
            Phase::Queue => Phase::Spawn,
            phase => phase,
        };
        self.finish(id, Ok(RunStatus::DeadlineExceeded { phase }.into()));
    }

    /// Ends a zygote; those that wait for it get the outcome.
    pub(super) fn end_zygote_with(&mut self, id: u64, status: &dyn Fn() -> RunStatus) {
        let unenforced = self.shared.layers.unenforced.clone();
        let mut output = None;
        if let Some(zygote) = self.zygotes.get_mut(&id) {
            zygote.stdout.drain();
            zygote.stderr.drain();
            output = Some((zygote.stdout.capture.finish(), zygote.stderr.capture.finish()));
        }
        self.end_zygote(id, &|| {
            let mut outcome = super::run::without_process(status(), ExecutionMode::Zygote, &unenforced);
            if let Some((stdout, stderr)) = &output {
                outcome.stdout = stdout.clone();
                outcome.stderr = stderr.clone();
            }
            Ok(outcome)
        });
    }

    /// Kills a zygote with all its calls. Those that wait for it get `answer`; those that run end by it.
    pub(super) fn end_zygote(&mut self, id: u64, answer: &dyn Fn() -> Result<Answer, Error>) {
        let Some(zygote) = self.zygotes.remove(&id) else {
            return;
        };
        zygote.kill();
        if self.by_key.get(&zygote.key) == Some(&id) {
            self.by_key.remove(&zygote.key);
        }
        for job in zygote.waiting {
            self.active = self.active.saturating_sub(1);
            (job.reply)(answer());
        }
        // Its calls end with it: the kernel ends everything in its namespace.
        let forked: Vec<u64> = self
            .runs
            .iter()
            .filter(|(_, run)| matches!(run.owner, Owner::Forked { zygote: of, .. } if of == id))
            .map(|(run, _)| *run)
            .collect();
        for run in forked {
            self.read_the_rest(run);
            let Some(found) = self.runs.get_mut(&run) else {
                continue;
            };
            if let Some(status) = found.end.take() {
                self.finish(run, Ok(status));
                continue;
            }
            if !self.begin_again(run) {
                self.finish_without_frame(run, Exit::Unknown);
            }
        }
        let leaving = Leaving {
            owner: zygote.owner,
            _group: zygote.group,
            id: zygote.id,
            holds_place: false,
        };
        self.leaving.insert(id, leaving);
        self.left(id);
    }
}

impl Run {
    /// Reads what a program that writes JSON has written last.
    fn stdout_value(&mut self) {
        let limit = self.limits.result_bytes;
        let value = &mut self.value;
        if let Some(reader) = self.stdout.reader() {
            while value.len() as u64 <= limit {
                let read = super::wire::drain(reader, |bytes| {
                    value.extend_from_slice(bytes);
                    value.len() as u64 <= limit
                });
                if read != super::wire::Read::More {
                    break;
                }
            }
        }
    }

    fn stderr_text(&mut self) -> String {
        self.stderr.drain();
        caliber_core::text::escaped(&self.stderr.capture.finish().text, 2000)
    }
}

fn usage_of(run: &Run) -> Usage {
    let Some(group) = &run.group else {
        return Usage::default();
    };
    let usage = group.usage();
    Usage {
        cpu_us: usage.cpu_us,
        peak_memory_bytes: usage.peak_memory_bytes,
    }
}

pub(super) fn is_readable(descriptor: &impl std::os::fd::AsFd) -> bool {
    let mut poll = [rustix::event::PollFd::new(
        descriptor,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|count| count > 0)
}

/// What a run of its own listens to, by name.
pub(super) fn process_token(id: u64) -> Token {
    Token {
        id,
        part: Part::Process,
    }
}
