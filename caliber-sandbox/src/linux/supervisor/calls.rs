//! Zygotes: what they say, and the calls that they fork.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use caliber_core::sandbox::{ExecutionMode, Exit, RunStatus};
use rustix::io::Errno;
use serde::Deserialize;

use super::super::protocol::{FrameReader, Said};
use super::super::spawn::{SpawnFailure, Stage};
use super::channel::{error_status, not_set_up};
use super::ends::{is_readable, process_token};
use super::run::{Owner, Run};
use super::zygote::{Behind, State, behind, parent_of, receive_message};
use super::{NotForked, Part, Supervisor, exit_of, failed};

/// What a zygote says when its module is imported.
#[derive(Deserialize)]
struct Ready {
    /// Whether nothing is in it that a fork would break: no thread, no descriptor.
    safe: bool,
    /// The error of a first fork; zero when it worked.
    clone: i32,
}

#[derive(Deserialize)]
struct Forked {
    id: u64,
    errno: i32,
}

#[derive(Deserialize)]
struct Done {
    id: u64,
    status: i32,
}

#[derive(Deserialize)]
struct Free {
    id: u64,
    /// How many folders are free.
    free: usize,
}

impl Supervisor {
    pub(super) fn zygote_started(&mut self, id: u64) {
        let Some(zygote) = self.zygotes.get_mut(&id) else {
            return;
        };
        let placeholder = Owner::Forked {
            zygote: 0,
            pidfd: None,
        };
        match std::mem::replace(&mut zygote.owner, placeholder) {
            Owner::Starting(starting) => {
                self.poller.remove(starting.status());
                match starting.finish() {
                    Ok(child) => zygote.owner = Owner::Child(child),
                    Err(failure) => self.end_zygote(id, &|| Err(failed(&failure))),
                }
            }
            other => zygote.owner = other,
        }
    }

    pub(super) fn zygote_output(&mut self, id: u64, part: Part) {
        if let Some(zygote) = self.zygotes.get_mut(&id) {
            let stream = if part == Part::Stdout {
                &mut zygote.stdout
            } else {
                &mut zygote.stderr
            };
            stream.drain();
        }
    }

    pub(super) fn zygote_control(&mut self, id: u64) {
        // As many messages as others can wait for.
        for _ in 0..64 {
            let Some(zygote) = self.zygotes.get(&id) else {
                return;
            };
            match receive_message(&zygote.control, &mut self.message) {
                Ok(Some((message, descriptor))) => {
                    if self.zygote_says(id, &message, descriptor).is_none() {
                        self.break_zygote(id);
                        return;
                    }
                }
                Ok(None) => {
                    // Its end is noticed by its process.
                    self.poller.remove(&zygote.control);
                    return;
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.poller.remove(&zygote.control);
                    return;
                }
            }
        }
    }

    /// A zygote that does not keep to the protocol ends, and all its calls with it.
    fn break_zygote(&mut self, id: u64) {
        self.end_zygote_with(id, &|| RunStatus::ProtocolViolation {
            problem: "the process with the imported module broke the protocol".into(),
        });
    }

    /// Hears one message; `None` when it is not in order.
    fn zygote_says(&mut self, id: u64, message: &[u8], descriptor: Option<OwnedFd>) -> Option<()> {
        let zygote = self.zygotes.get_mut(&id)?;
        let mut reader = FrameReader::new(zygote.nonce, 0);
        reader.push(message);
        let said = reader.next().ok().flatten()?;
        if reader.is_amid() {
            return None;
        }
        match (said.said, zygote.state) {
            (Said::Hello, State::Made) => zygote.state = State::Importing,
            (Said::Error, State::Importing) => {
                let payload = said.payload;
                self.end_zygote_with(id, &|| error_status(&payload, &[]));
            }
            (Said::Ready, State::Importing) => {
                let ready: Ready = serde_json::from_slice(&said.payload).ok()?;
                self.zygote_is_ready(id, &ready);
            }
            (Said::Forked, State::Ready) => {
                let forked: Forked = serde_json::from_slice(&said.payload).ok()?;
                self.forked(id, &forked, descriptor)?;
            }
            (Said::Done, State::Ready) => {
                let done: Done = serde_json::from_slice(&said.payload).ok()?;
                // It is said of a process that has been collected, and the kernel knows whether one has.
                let has_ended = |run: &Run| match &run.owner {
                    Owner::Forked { pidfd, .. } => pidfd.as_ref().is_some_and(is_readable),
                    _ => false,
                };
                let is_untrue = self.runs.get(&done.id).is_some_and(|run| !has_ended(run));
                if !zygote.forked.contains(&done.id) || is_untrue {
                    return None;
                }
                self.forked_has_ended(done.id, done.status);
            }
            (Said::Free, State::Ready) => {
                let free: Free = serde_json::from_slice(&said.payload).ok()?;
                // Nor is the folder of a call free that has not ended.
                let is_untrue = self.runs.contains_key(&free.id);
                if !zygote.forked.remove(&free.id) || is_untrue {
                    return None;
                }
                // A folder that could not be emptied is lost; a zygote without any is of no use.
                zygote.folders = zygote.folders.min(zygote.forked.len().saturating_add(free.free));
                if zygote.folders == 0 {
                    zygote.retired = true;
                }
                if zygote.retired && self.by_key.get(&zygote.key) == Some(&id) {
                    self.by_key.remove(&zygote.key);
                }
                self.serve_waiting(id);
            }
            _ => return None,
        }
        Some(())
    }

    fn zygote_is_ready(&mut self, id: u64, ready: &Ready) {
        let Some(zygote) = self.zygotes.get_mut(&id) else {
            return;
        };
        if ready.safe && ready.clone == 0 {
            zygote.state = State::Ready;
            zygote.last_used = Instant::now();
            self.serve_waiting(id);
            return;
        }
        let why = if ready.safe {
            NotForked::Kernel
        } else {
            NotForked::Module
        };
        if why == NotForked::Kernel {
            tracing::warn!(
                errno = ready.clone,
                "calls cannot be forked from an imported module here; every call starts an interpreter"
            );
        }
        let key = zygote.key.clone();
        let limits = zygote.limits;
        self.programs
            .insert(key.clone(), (std::sync::Arc::clone(&zygote.program), limits));
        let waiting = std::mem::take(&mut zygote.waiting);
        if let Some(habit) = self.habits.get_mut(&key) {
            habit.not_forked = Some(why);
        }
        self.end_zygote(id, &|| Err(super::closed()));
        for job in waiting {
            self.begin_in_new_process(key.clone(), limits, job, ExecutionMode::Cold);
        }
    }

    /// Forks calls for those that wait, as long as there is room.
    fn serve_waiting(&mut self, id: u64) {
        while let Some(zygote) = self.zygotes.get_mut(&id) {
            if zygote.retired && !zygote.waiting.is_empty() {
                // They begin again, with another one.
                let waiting = std::mem::take(&mut zygote.waiting);
                for job in waiting {
                    self.begin(job);
                }
                return;
            }
            if !zygote.has_room() {
                return;
            }
            let Some(job) = zygote.waiting.pop_front() else {
                return;
            };
            self.wait_for(id, job);
        }
    }

    /// A call was forked, or could not be.
    fn forked(&mut self, zygote: u64, forked: &Forked, descriptor: Option<OwnedFd>) -> Option<()> {
        let found = self.zygotes.get_mut(&zygote)?;
        if !found.forked.contains(&forked.id) {
            return None;
        }
        let maker = match &found.owner {
            Owner::Child(child) => child.pid().as_raw_nonzero().get(),
            _ => return None,
        };
        if forked.errno != 0 {
            found.forked.remove(&forked.id);
            let failure = SpawnFailure {
                stage: Stage::Clone,
                errno: Errno::from_raw_os_error(forked.errno),
                detail: None,
            };
            if !self.begin_again(forked.id) {
                self.finish(forked.id, Err(failed(&failure)));
            }
            return Some(());
        }
        // A hostile module may send anything. What is no process could neither be killed nor be seen to end, and only a
        // child of its own is killed or moved in its name. A process that is gone has no parent to be seen.
        let pidfd = descriptor?;
        let process = match behind(pidfd.as_fd())? {
            Behind::Process(process) => Some(process),
            Behind::Gone => None,
        };
        let is_own = process.is_none_or(|process| parent_of(process).is_none_or(|parent| parent == maker));
        if !is_own {
            return None;
        }
        // A call has one process: another one would hide the first from its end.
        let has_process = |run: &Run| !matches!(run.owner, Owner::Forked { pidfd: None, .. });
        if self.runs.get(&forked.id).is_some_and(has_process) {
            return None;
        }
        let Some(run) = self.runs.get(&forked.id) else {
            // Nobody waits for it any longer. It has been told nothing, and ends by itself as well.
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            return Some(());
        };
        let limits = run.limits;
        let group = match self.make_group(&limits, 1) {
            Ok(group) => group,
            Err(error) => {
                let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
                self.finish(forked.id, Err(error));
                return Some(());
            }
        };
        if let (Some(group), Some(process)) = (&group, process) {
            // A call outside its group would be bound by nothing.
            if let Err(errno) = joined(group.add(process)) {
                let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
                let failure = SpawnFailure {
                    stage: Stage::Cgroup,
                    errno,
                    detail: None,
                };
                self.finish(forked.id, Err(failed(&failure)));
                return Some(());
            }
        }
        let watched = self.poller.add(&pidfd, process_token(forked.id), false);
        let run = self.runs.get_mut(&forked.id)?;
        run.group = group;
        run.owner = Owner::Forked {
            zygote,
            pidfd: Some(pidfd),
        };
        match watched {
            Ok(()) => self.call_when_ready(forked.id),
            Err(errno) => self.finish(forked.id, Err(super::system_failed(errno))),
        }
        Some(())
    }

    pub(super) fn zygote_ended(&mut self, id: u64) {
        self.zygote_control(id);
        let Some(zygote) = self.zygotes.get_mut(&id) else {
            return;
        };
        let state = zygote.state;
        let exit = match &mut zygote.owner {
            Owner::Starting(_) => {
                self.zygote_started(id);
                if self.zygotes.contains_key(&id) {
                    self.zygote_ended(id);
                }
                return;
            }
            Owner::Child(child) => exit_of(child),
            Owner::Forked { .. } => Exit::Unknown,
        };
        if state == State::Made {
            zygote.stderr.drain();
            let output = caliber_core::text::escaped(&zygote.stderr.capture.finish().text, 2000);
            tracing::warn!(?exit, output, "a child ended before it was set up");
            self.end_zygote(id, &|| Err(not_set_up(ExecutionMode::Zygote, exit)));
            return;
        }
        if state == State::Ready {
            zygote.stderr.drain();
            let output = caliber_core::text::escaped(&zygote.stderr.capture.finish().text, 2000);
            tracing::warn!(?exit, output, "a process with an imported module ended");
        }
        self.end_zygote_with(id, &|| RunStatus::NoResult {
            phase: caliber_core::sandbox::Phase::Import,
            exit,
        });
    }
}

/// Whether a process is in its control group. One that has ended needs none; its end is noticed as such.
fn joined(added: Result<(), Errno>) -> Result<(), Errno> {
    match added {
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_has_ended_needs_no_control_group() {
        assert_eq!(joined(Ok(())), Ok(()));
        assert_eq!(joined(Err(Errno::SRCH)), Ok(()));
        for errno in [
            Errno::ACCESS,
            Errno::BUSY,
            Errno::NODEV,
            Errno::NOSPC,
            Errno::AGAIN,
        ] {
            assert_eq!(joined(Err(errno)), Err(errno));
        }
    }
}
