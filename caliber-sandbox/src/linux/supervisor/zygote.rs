//! A process that has a module imported and forks every call.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use caliber_core::id::ProjectId;
use caliber_core::sandbox::{PinnedProgram, RunRequest};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::super::cgroup::Group;
use super::super::protocol::Nonce;
use super::run::{Job, Owner};
use super::wire::Stream;
use crate::settings::Limits;

/// What processes may be shared for: the same source on the same interpreter, the same callable and limits, and the same
/// project.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    source: String,
    environment: String,
    program: String,
    tenant: ProjectId,
    limits: [u64; 6],
    many: bool,
}

impl Key {
    pub(super) fn of(request: &RunRequest, limits: &Limits, many: bool) -> Self {
        let PinnedProgram {
            program,
            source,
            environment,
            ..
        } = request.program.as_ref();
        Self {
            source: source.to_string(),
            environment: environment.to_string(),
            program: format!("{program:?}"),
            tenant: request.tenant.clone(),
            limits: [
                limits.memory_bytes,
                u64::from(limits.processes),
                limits.scratch_bytes,
                limits.scratch_inodes,
                u64::from(limits.open_files),
                limits.result_bytes,
            ],
            many,
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is being made.
    Made,
    /// Its restrictions are in place, and it imports.
    Importing,
    /// It forks calls.
    Ready,
}

#[derive(Debug)]
pub(super) struct Zygote {
    pub(super) key: Key,
    pub(super) program: Arc<PinnedProgram>,
    pub(super) limits: Limits,
    pub(super) owner: Owner,
    pub(super) id: Option<u32>,
    pub(super) group: Option<Group>,
    pub(super) control: OwnedFd,
    pub(super) nonce: Nonce,
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
    pub(super) state: State,
    /// Calls that wait for it.
    pub(super) waiting: VecDeque<Job>,
    /// Calls that were forked and whose folder is not free yet.
    pub(super) forked: HashSet<u64>,
    /// How many it can have at once.
    pub(super) folders: usize,
    pub(super) calls: u64,
    pub(super) last_used: Instant,
    /// When the import is given up.
    pub(super) import_until: Instant,
    /// Whether it takes no further calls and ends with its last one.
    pub(super) retired: bool,
}

impl Zygote {
    pub(super) fn has_room(&self) -> bool {
        self.state == State::Ready && !self.retired && self.forked.len() < self.folders
    }

    pub(super) fn kill(&self) {
        match &self.owner {
            Owner::Starting(starting) => starting.child().kill(),
            Owner::Child(child) => child.kill(),
            Owner::Forked { .. } => {}
        }
        if let Some(group) = &self.group {
            group.kill();
        }
    }
}

/// Sends one message with descriptors.
pub(super) fn send_message(
    control: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(control, &parts, &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}

/// One message, and the descriptor that came with it.
pub(super) type Message = (Vec<u8>, Option<OwnedFd>);

/// The next message; `None` at the end.
pub(super) fn receive_message(control: impl AsFd, buffer: &mut [u8]) -> Result<Option<Message>, Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = {
        let mut parts = [std::io::IoSliceMut::new(buffer)];
        rustix::net::recvmsg(control, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?
    };
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            // Whatever else a hostile module sends along is closed here.
            for sent in descriptors {
                descriptor = descriptor.or(Some(sent));
            }
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let bytes = buffer.get(..received.bytes).unwrap_or_default();
    Ok(Some((bytes.to_vec(), descriptor)))
}

/// What a descriptor of a process stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// A process, by its id as this process sees it.
    Process(rustix::process::Pid),
    /// One that was collected already.
    Gone,
}

/// What is behind a descriptor; `None` when it is not one of a process that this process could see.
pub(super) fn behind(descriptor: BorrowedFd<'_>) -> Option<Behind> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd())).ok()?;
    // Only descriptors of processes have that line. Zero is a process of a namespace that is not below this one.
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    match line.trim().parse::<i32>().ok()? {
        -1 => Some(Behind::Gone),
        id if id > 0 => rustix::process::Pid::from_raw(id).map(Behind::Process),
        _ => None,
    }
}

/// The process that made another one, as this process sees it.
pub(super) fn parent_of(process: rustix::process::Pid) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// How the process behind a descriptor ended, from the kernel itself, where it can tell (Linux 6.15).
pub(super) fn exit_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    use std::os::fd::AsRawFd;
    /// `struct pidfd_info` of its first version.
    #[repr(C)]
    struct Information {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const EXIT: u64 = 1 << 3;
    /// `_IOWR(0xFF, 11, struct pidfd_info)`.
    const GET_INFO: libc::c_ulong =
        (3 << 30) | ((size_of::<Information>() as libc::c_ulong) << 16) | (0xff << 8) | 11;
    let mut information = Information {
        mask: EXIT,
        cgroup: 0,
        ids: [0; 11],
        exit_code: 0,
    };
    // SAFETY: the structure is as long as the request says; the kernel writes no more than that.
    let answer = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut information) };
    (answer == 0 && information.mask & EXIT != 0).then_some(information.exit_code)
}

#[cfg(test)]
mod tests {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    #[test]
    fn only_descriptors_of_processes_have_one_behind_them() {
        let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        assert_eq!(behind(own.as_fd()), Some(Behind::Process(getpid())));

        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        let gone = pidfd_open(id, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert_eq!(behind(gone.as_fd()), Some(Behind::Gone));

        let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        for other in [counter.as_fd(), file.as_fd(), pipe.as_fd()] {
            assert_eq!(behind(other), None);
        }
    }
}
