//! The engine's ends of a child's descriptors. None of them ever blocks.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::super::output::Capture;

/// Read at once, in bytes.
const CHUNK: usize = 64 << 10;
/// Reads in a row before others have their turn.
const TURNS: usize = 16;

/// Two connected sockets: ours does not block, the child's does.
pub(super) fn socket_pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// A pipe from the child.
pub(super) fn output_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// How a round of reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// There may be more.
    More,
    /// Nothing is there now.
    Empty,
    /// The other side has closed.
    Closed,
}

/// Reads what is there, up to a megabyte, and gives it away piece by piece; `take` says whether to go on.
pub(super) fn drain(descriptor: impl AsFd, mut take: impl FnMut(&[u8]) -> bool) -> Read {
    // Not cleared before it is read into: most reads are short.
    let mut chunk = [MaybeUninit::uninit(); CHUNK];
    for _ in 0..TURNS {
        match rustix::io::read(&descriptor, &mut chunk) {
            Ok(([], _)) => return Read::Closed,
            Ok((bytes, _)) => {
                if !take(bytes) {
                    return Read::More;
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Read::Empty,
            // A reset by the child is its end.
            Err(_) => return Read::Closed,
        }
    }
    Read::More
}

/// One captured stream.
#[derive(Debug)]
pub(super) struct Stream {
    reader: Option<OwnedFd>,
    pub(super) capture: Capture,
}

impl Stream {
    pub(super) fn new(reader: Option<OwnedFd>, limit: usize) -> Self {
        Self {
            reader,
            capture: Capture::new(limit),
        }
    }

    pub(super) fn reader(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().map(AsFd::as_fd)
    }

    /// Reads what is there.
    pub(super) fn drain(&mut self) -> Read {
        let Some(reader) = &self.reader else {
            return Read::Closed;
        };
        let capture = &mut self.capture;
        let read = drain(reader, |bytes| {
            capture.push(bytes);
            true
        });
        if read == Read::Closed {
            self.reader = None;
        }
        read
    }
}

/// Bytes on their way to the child.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbound {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends what the other side takes now. What is lost with a child that has ended is not missed.
    pub(super) fn send(&mut self, descriptor: impl AsFd, is_socket: bool) {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let sent = if is_socket {
                rustix::net::send(&descriptor, rest, SendFlags::NOSIGNAL)
            } else {
                rustix::io::write(&descriptor, rest)
            };
            match sent {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => break,
            }
        }
        self.bytes = Vec::new();
        self.sent = 0;
    }
}
