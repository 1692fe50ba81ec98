//! Beginning a job: which process it gets, and making that process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    ExecutionMode, ExecutionPreference, NativeProtocol, Phase, PinnedProgram, Program, RunStatus,
};
use caliber_core::{Error, ErrorKind};
use rustix::net::SocketType;

use super::super::cgroup::GroupLimits;
use super::super::confinement::Confinement;
use super::super::protocol::{FrameReader, Told, frame, new_nonce};
use super::super::spawn::{self, Descriptors, Stage, Starting};
use super::super::tool::{self, Kind};
use super::run::{self, Job, Owner, Progress, Run, Speech};
use super::wire::{self, Outbound, Stream};
use super::zygote::{Key, State, Zygote};
use super::{Group, HABITS, Habit, Part, Supervisor, Token, failed, system_failed};
use crate::settings::Limits;

/// The most that a description of a callable may be, in bytes.
const LOOK: usize = 1 << 20;
/// The most calls that one zygote runs at once.
const FOLDERS: usize = 32;

impl Supervisor {
    /// Begins a job that has its place, or begins it again when its process did not come to be: the time that it has spent
    /// on starting stays spent.
    pub(super) fn begin(&mut self, mut job: Job) {
        let now = Instant::now();
        let is_first = job.since.is_none();
        job.since.get_or_insert(now);
        if is_first && job.deadline <= now || job.start_expires() <= now {
            let phase = if is_first { Phase::Queue } else { Phase::Import };
            let status = RunStatus::DeadlineExceeded { phase };
            let outcome = run::without_process(status, ExecutionMode::Cold, &self.shared.layers.unenforced);
            self.active = self.active.saturating_sub(1);
            (job.reply)(Ok(outcome));
            return;
        }
        let limits = tool::limits_of(&job.request, &self.shared.settings);
        let is_native = matches!(job.request.program.program, Program::Native { .. });
        let wants_many = job.request.preference == ExecutionPreference::Persistent && !job.look && !is_native;
        if wants_many && !self.shared.settings.allow_persistent {
            let error = Error::new(
                ErrorKind::Unavailable,
                "the tool asks for a process that serves many calls; the sandbox's settings do not allow that",
            );
            self.refuse(job, error.with_reason(ReasonCode::SandboxUnavailable));
            return;
        }
        let key = Key::of(&job.request, &limits, wants_many);
        if job.look || is_native || job.request.preference == ExecutionPreference::Cold {
            self.begin_in_new_process(key, limits, job, ExecutionMode::Cold);
            return;
        }
        let habit = self.habit(&key);
        habit.calls += u64::from(is_first);
        habit.last = now;
        let not_forked = habit.not_forked;

        // A process that waits for a call already.
        while let Some(id) = self.standby.get_mut(&key).and_then(VecDeque::pop_front) {
            if self.runs.contains_key(&id) {
                self.assign(id, job);
                return;
            }
        }
        if wants_many {
            self.begin_in_new_process(key, limits, job, ExecutionMode::Persistent);
            return;
        }
        if not_forked.is_some() || self.shared.settings.zygotes == 0 || !self.shared.layers.namespaces {
            self.begin_in_new_process(key, limits, job, ExecutionMode::Cold);
            return;
        }
        let zygote = match self.by_key.get(&key).copied() {
            Some(zygote) => zygote,
            None if self.make_room() => {
                match self.make_zygote(key.clone(), Arc::clone(&job.request.program), limits, &job) {
                    Ok(zygote) => zygote,
                    Err(error) => {
                        self.refuse(job, error);
                        return;
                    }
                }
            }
            None => {
                self.begin_in_new_process(key, limits, job, ExecutionMode::Cold);
                return;
            }
        };
        self.wait_for(zygote, job);
    }

    /// Forks a call for the job, or lets it wait until that can be done.
    pub(super) fn wait_for(&mut self, zygote: u64, job: Job) {
        let Some(found) = self.zygotes.get_mut(&zygote) else {
            let error = system_failed(rustix::io::Errno::SRCH);
            self.refuse(job, error);
            return;
        };
        if !found.has_room() {
            found.waiting.push_back(job);
            return;
        }
        let (key, limits) = (found.key.clone(), found.limits);
        match self.fork(zygote, ExecutionMode::Zygote) {
            Ok(run) => self.assign(run, job),
            // It is about to end. A process of its own has every layer as well.
            Err(_) => self.begin_in_new_process(key, limits, job, ExecutionMode::Cold),
        }
    }

    /// Answers a job that has its place, and that nothing was done for.
    pub(super) fn refuse(&mut self, job: Job, error: Error) {
        self.active = self.active.saturating_sub(1);
        (job.reply)(Err(error));
    }

    fn habit(&mut self, key: &Key) -> &mut Habit {
        if self.habits.len() >= HABITS && !self.habits.contains_key(key) {
            let oldest = self.habits.iter().min_by_key(|(_, habit)| habit.last);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.habits.remove(&oldest);
                self.programs.remove(&oldest);
            }
        }
        let now = Instant::now();
        let idle = self.shared.settings.zygote_idle;
        if self
            .habits
            .get(key)
            .is_some_and(|habit| !habit.is_recent(now, idle))
        {
            self.habits.remove(key);
            self.programs.remove(key);
        }
        self.habits.entry(key.clone()).or_insert(Habit {
            calls: 0,
            last: now,
            not_forked: None,
        })
    }

    pub(super) fn begin_in_new_process(&mut self, key: Key, limits: Limits, job: Job, mode: ExecutionMode) {
        let cpu = self.cpu_seconds(&job);
        let made = self.make_run(key, &job.request.program, limits, mode, Some((&job, cpu)));
        match made {
            Ok(run) => self.assign(run, job),
            Err(error) => self.refuse(job, error),
        }
    }

    /// How long all processors together may be busy for the job: longer than its deadline by a second for each.
    pub(super) fn cpu_seconds(&self, job: &Job) -> u64 {
        let rest = job.deadline.saturating_duration_since(Instant::now()) + job.request.startup_grace;
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        (rest.as_secs() + 2).saturating_mul(processors)
    }

    /// Makes a process of its own for one call, or for many. Without a job it waits for its call.
    pub(super) fn make_run(
        &mut self,
        key: Key,
        program: &Arc<PinnedProgram>,
        limits: Limits,
        mode: ExecutionMode,
        job: Option<(&Job, u64)>,
    ) -> Result<u64, Error> {
        let looks = job.is_some_and(|(job, _)| job.look);
        let (mode, speech) = match &program.program {
            Program::Native { protocol, .. } => match protocol {
                NativeProtocol::Framed => (ExecutionMode::Native, Speech::Frames),
                NativeProtocol::Json => (ExecutionMode::Native, Speech::Json),
            },
            _ if looks => (mode, Speech::Look),
            _ => (mode, Speech::Bootstrap),
        };
        let many = mode == ExecutionMode::Persistent;
        let id = self.take_id()?;
        let kind = Kind {
            id,
            scratch_folders: 1,
            forks: false,
            cpu_seconds: job.map(|(_, cpu)| cpu).filter(|_| !many),
        };
        let settings = &self.shared.settings;
        let layers = &self.shared.layers;
        let interpreter = &self.shared.interpreter;
        let confinement = match speech {
            Speech::Frames | Speech::Json => {
                // A program with frames finds them in the frame of its call. Whoever reads plain JSON has no other place.
                let secrets = job
                    .map(|(job, _)| job.request.secrets.as_slice())
                    .filter(|_| speech == Speech::Json)
                    .unwrap_or_default();
                let variables = secrets
                    .iter()
                    .map(|(name, value)| (format!("CALIBER_SECRET_{name}"), value.expose().to_owned()))
                    .collect::<Vec<_>>();
                tool::native(program, interpreter, settings, layers, &limits, kind, &variables)
            }
            _ => tool::python(program, interpreter, settings, layers, &limits, kind),
        };
        let made = confinement
            .map_err(|failure| failed(&failure))
            .and_then(|confinement| self.start_run(key, program, limits, mode, speech, &confinement, id));
        if made.is_err() {
            self.ids.give_back(id);
        }
        let run = made?;
        if let Some(run) = self.runs.get_mut(&run) {
            run.many = many;
            run.cpu_seconds = job.map_or(0, |(_, cpu)| cpu);
        }
        Ok(run)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts that a run is made of")]
    fn start_run(
        &mut self,
        key: Key,
        program: &Arc<PinnedProgram>,
        limits: Limits,
        mode: ExecutionMode,
        speech: Speech,
        confinement: &Confinement,
        id: Option<u32>,
    ) -> Result<u64, Error> {
        let settings = &self.shared.settings;
        let nonce = new_nonce();
        let (stdout, stdout_theirs) = wire::output_pipe().map_err(system_failed)?;
        let (stderr, stderr_theirs) = wire::output_pipe().map_err(system_failed)?;
        let group = self.make_group(&limits, 1)?;
        let (channel, theirs, is_stdin) = if speech == Speech::Json {
            let (reader, writer) =
                rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(system_failed)?;
            rustix::io::ioctl_fionbio(&writer, true).map_err(system_failed)?;
            (writer, reader, true)
        } else {
            let (ours, theirs) = wire::socket_pair(SocketType::STREAM).map_err(system_failed)?;
            (ours, theirs, false)
        };
        let starting = start(
            confinement,
            program,
            Descriptors {
                stdin: if is_stdin {
                    theirs.as_fd()
                } else {
                    self.null.as_fd()
                },
                stdout: stdout_theirs.as_fd(),
                stderr: stderr_theirs.as_fd(),
                channel: (!is_stdin).then(|| theirs.as_fd()),
                cgroups: group.as_ref().map(Group::joining).unwrap_or_default(),
            },
        )?;
        let mut outbound = Outbound::default();
        if matches!(speech, Speech::Bootstrap | Speech::Look) {
            let word = match (speech, mode) {
                (Speech::Look, _) => "look",
                (_, ExecutionMode::Persistent) => "many",
                _ => "once",
            };
            outbound.push(&self.shared.code);
            outbound.push(&frame(
                Told::Setup,
                &nonce,
                self.setup(word, program).to_string().as_bytes(),
            ));
        }
        let limit = if speech == Speech::Look {
            LOOK
        } else {
            usize::try_from(limits.result_bytes).unwrap_or(usize::MAX)
        };
        let output = settings.output_bytes;
        let now = Instant::now();
        let run = Run {
            key,
            job: None,
            owner: Owner::Starting(starting),
            speech,
            mode,
            many: false,
            progress: Progress::Made,
            nonce,
            channel: Some(channel),
            frames: FrameReader::new(nonce, limit),
            outbound,
            stdout: Stream::new(Some(stdout), output),
            stderr: Stream::new(Some(stderr), output),
            value: Vec::new(),
            end: None,
            settle_at: None,
            group,
            id,
            limits,
            since: now,
            ready: None,
            called: None,
            cpu_seconds: 0,
        };
        self.watch(run)
    }

    /// Listens to a new run.
    pub(super) fn watch(&mut self, mut run: Run) -> Result<u64, Error> {
        let id = self.new_id();
        let add = |part, descriptor: std::os::fd::BorrowedFd<'_>, writes| {
            self.poller.add(descriptor, Token { id, part }, writes)
        };
        let mut watched = Ok(());
        if let Some(channel) = &run.channel {
            run.outbound.send(channel, run.speech != Speech::Json);
            let writes = !run.outbound.is_empty();
            // The writing end of a pipe is only waited for while there is something to write.
            if run.speech != Speech::Json || writes {
                watched = watched.and_then(|()| add(Part::Channel, channel.as_fd(), writes));
            }
        }
        for (part, stream) in [(Part::Stdout, &run.stdout), (Part::Stderr, &run.stderr)] {
            if let Some(reader) = stream.reader() {
                watched = watched.and_then(|()| add(part, reader, false));
            }
        }
        match &run.owner {
            Owner::Starting(starting) => {
                watched = watched.and_then(|()| add(Part::Status, starting.status(), false));
                watched = watched.and_then(|()| add(Part::Process, starting.child().pidfd(), false));
            }
            Owner::Child(child) => watched = watched.and_then(|()| add(Part::Process, child.pidfd(), false)),
            Owner::Forked { .. } => {}
        }
        // A run that cannot be listened to is dropped, and its process with it.
        watched.map_err(system_failed)?;
        self.runs.insert(id, run);
        Ok(id)
    }

    fn setup(&self, mode: &str, program: &PinnedProgram) -> serde_json::Value {
        let (module, callable, sources) = match &program.program {
            Program::Python {
                module_path,
                callable_name,
                source_roots,
                ..
            } => (module_path.as_str(), callable_name.as_str(), source_roots.len()),
            _ => ("", "", 0),
        };
        serde_json::json!({
            "mode": mode,
            "module": module,
            "callable": callable,
            "paths": tool::import_paths(&program.program, &self.shared.layers, &self.shared.settings, program),
            // How many of them are source roots; packages follow.
            "sources": sources,
            "source_limit": self.shared.settings.output_bytes,
        })
    }

    fn take_id(&mut self) -> Result<Option<u32>, Error> {
        if !self.shared.layers.namespaces || !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        match self.ids.take() {
            Some(id) => Ok(Some(id)),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                "every user id of the sandbox is taken; set a larger `uid_count`",
            )
            .with_reason(ReasonCode::SandboxBusy)),
        }
    }

    pub(super) fn make_group(&self, limits: &Limits, calls: usize) -> Result<Option<Group>, Error> {
        let Some(groups) = &self.groups else {
            return Ok(None);
        };
        let limits = GroupLimits {
            memory_bytes: limits.memory_bytes,
            processes: u64::from(limits.processes).saturating_mul(calls as u64),
        };
        groups.make(limits).map(Some).map_err(|failure| {
            Error::new(ErrorKind::Unavailable, failure.to_string()).with_reason(ReasonCode::SandboxFailed)
        })
    }

    fn make_zygote(
        &mut self,
        key: Key,
        program: Arc<PinnedProgram>,
        limits: Limits,
        job: &Job,
    ) -> Result<u64, Error> {
        let id = self.take_id()?;
        let made = self.start_zygote(key, program, limits, job, id);
        if made.is_err() {
            self.ids.give_back(id);
        }
        made
    }

    fn start_zygote(
        &mut self,
        key: Key,
        program: Arc<PinnedProgram>,
        limits: Limits,
        job: &Job,
        id: Option<u32>,
    ) -> Result<u64, Error> {
        let settings = &self.shared.settings;
        let layers = &self.shared.layers;
        let folders = (settings.places + settings.spares).clamp(1, FOLDERS);
        let kind = Kind {
            id,
            scratch_folders: folders,
            forks: true,
            cpu_seconds: None,
        };
        let confinement = tool::python(
            &program,
            &self.shared.interpreter,
            settings,
            layers,
            &limits,
            kind,
        )
        .map_err(|failure| failed(&failure))?;
        let call_layers =
            tool::call_layers(layers, &limits, &confinement, folders).map_err(|failure| failed(&failure))?;
        let mut setup = self.setup("serve", &program);
        if let (Some(setup), serde_json::Value::Object(more)) = (setup.as_object_mut(), call_layers) {
            setup.extend(more);
        }
        let nonce = new_nonce();
        let (control, theirs) = wire::socket_pair(SocketType::SEQPACKET).map_err(system_failed)?;
        let (stdout, stdout_theirs) = wire::output_pipe().map_err(system_failed)?;
        let (stderr, stderr_theirs) = wire::output_pipe().map_err(system_failed)?;
        let group = self.make_group(&limits, folders + 1)?;
        let starting = start(
            &confinement,
            &program,
            Descriptors {
                stdin: self.null.as_fd(),
                stdout: stdout_theirs.as_fd(),
                stderr: stderr_theirs.as_fd(),
                channel: Some(theirs.as_fd()),
                cgroups: group.as_ref().map(Group::joining).unwrap_or_default(),
            },
        )?;
        for message in [
            self.shared.code.as_ref(),
            &frame(Told::Setup, &nonce, setup.to_string().as_bytes()),
        ] {
            super::zygote::send_message(&control, message, &[]).map_err(system_failed)?;
        }
        let zygote_id = self.new_id();
        let token = |part| Token { id: zygote_id, part };
        self.poller
            .add(&control, token(Part::Channel), false)
            .and_then(|()| self.poller.add(&stdout, token(Part::Stdout), false))
            .and_then(|()| self.poller.add(&stderr, token(Part::Stderr), false))
            .and_then(|()| self.poller.add(starting.status(), token(Part::Status), false))
            .and_then(|()| {
                self.poller
                    .add(starting.child().pidfd(), token(Part::Process), false)
            })
            .map_err(system_failed)?;
        let output = self.shared.settings.output_bytes;
        let now = Instant::now();
        // Beyond what any caller waits, so that imports that nobody could wait for end.
        let patience = job
            .request
            .startup_grace
            .max(self.shared.settings.timeout)
            .max(Duration::from_secs(1));
        let zygote = Zygote {
            key: key.clone(),
            program,
            limits,
            owner: Owner::Starting(starting),
            id,
            group,
            control,
            nonce,
            stdout: Stream::new(Some(stdout), output),
            stderr: Stream::new(Some(stderr), output),
            state: State::Made,
            waiting: VecDeque::new(),
            forked: std::collections::HashSet::new(),
            folders,
            calls: 0,
            last_used: now,
            import_until: now + patience,
            retired: false,
        };
        self.zygotes.insert(zygote_id, zygote);
        self.by_key.insert(key, zygote_id);
        Ok(zygote_id)
    }

    /// Forks a process for a call; it waits for its call.
    pub(super) fn fork(&mut self, zygote: u64, mode: ExecutionMode) -> Result<u64, Error> {
        let (ours, theirs) = wire::socket_pair(SocketType::STREAM).map_err(system_failed)?;
        let (stdout, stdout_theirs) = wire::output_pipe().map_err(system_failed)?;
        let (stderr, stderr_theirs) = wire::output_pipe().map_err(system_failed)?;
        let output = self.shared.settings.output_bytes;
        let Some(found) = self.zygotes.get(&zygote) else {
            return Err(system_failed(rustix::io::Errno::SRCH));
        };
        let nonce = new_nonce();
        let now = Instant::now();
        let run = Run {
            key: found.key.clone(),
            job: None,
            owner: Owner::Forked { zygote, pidfd: None },
            speech: Speech::Call,
            mode,
            many: false,
            progress: Progress::Made,
            nonce,
            channel: Some(ours),
            frames: FrameReader::new(
                nonce,
                usize::try_from(found.limits.result_bytes).unwrap_or(usize::MAX),
            ),
            outbound: Outbound::default(),
            stdout: Stream::new(Some(stdout), output),
            stderr: Stream::new(Some(stderr), output),
            value: Vec::new(),
            end: None,
            settle_at: None,
            group: None,
            id: None,
            limits: found.limits,
            since: now,
            ready: None,
            called: None,
            cpu_seconds: 0,
        };
        let id = self.watch(run)?;
        let descriptors: [OwnedFd; 3] = [theirs, stdout_theirs, stderr_theirs];
        let borrowed = [
            descriptors[0].as_fd(),
            descriptors[1].as_fd(),
            descriptors[2].as_fd(),
        ];
        let waits = u8::from(mode == ExecutionMode::Spare);
        let message = frame(Told::Fork, &nonce, format!("{id} {waits}").as_bytes());
        let Some(found) = self.zygotes.get_mut(&zygote) else {
            return Err(system_failed(rustix::io::Errno::SRCH));
        };
        if let Err(errno) = super::zygote::send_message(&found.control, &message, &borrowed) {
            self.runs.remove(&id);
            return Err(system_failed(errno));
        }
        found.forked.insert(id);
        found.calls += 1;
        found.last_used = now;
        if found.calls >= self.shared.settings.zygote_calls {
            found.retired = true;
            let key = found.key.clone();
            self.by_key.remove(&key);
        }
        Ok(id)
    }
}

/// Starts a child; what a missing copy of the source means is said in its own words.
fn start(
    confinement: &Confinement,
    program: &PinnedProgram,
    descriptors: Descriptors<'_>,
) -> Result<Starting, Error> {
    let prepared = spawn::prepare(confinement).map_err(|failure| {
        let gone = failure.stage == Stage::Prepare
            && failure.errno == rustix::io::Errno::NOENT
            && failure
                .detail
                .as_deref()
                .is_some_and(|path| path.contains(program.source.to_string().trim_start_matches("sha256:")));
        if gone {
            Error::new(
                ErrorKind::Unavailable,
                "the private copy of the source is gone; register the tool again",
            )
            .with_reason(ReasonCode::SourceChanged)
        } else {
            failed(&failure)
        }
    })?;
    spawn::start(&Arc::new(prepared), descriptors).map_err(|failure| failed(&failure))
}
