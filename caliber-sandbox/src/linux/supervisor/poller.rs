//! Waiting for descriptors and for one instant.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// What of a process, or of the supervisor itself, has something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Channel,
    Stdout,
    Stderr,
    Process,
    Status,
}

/// The descriptor of one part of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) id: u64,
    pub(super) part: Part,
}

const PARTS: [Part; 5] = [
    Part::Channel,
    Part::Stdout,
    Part::Stderr,
    Part::Process,
    Part::Status,
];
/// The tokens of the supervisor itself; processes are numbered from one on.
const WAKE: u64 = 0;
const TIMER: u64 = 1;

impl Token {
    fn data(self) -> EventData {
        EventData::new_u64(self.id << 3 | self.part as u64)
    }

    fn read(data: u64) -> Option<Self> {
        let part = PARTS.get((data & 7) as usize)?;
        Some(Self {
            id: data >> 3,
            part: *part,
        })
    }
}

/// The descriptors that are waited for.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed: Option<Instant>,
}

impl Poller {
    /// A poller that ends its wait when `wake` is readable.
    pub(super) fn new(wake: impl AsFd) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self {
            epoll,
            timer,
            armed: None,
        })
    }

    pub(super) fn add(&self, descriptor: impl AsFd, token: Token, writes: bool) -> Result<(), Errno> {
        epoll::add(&self.epoll, descriptor, token.data(), flags(writes))
    }

    pub(super) fn modify(&self, descriptor: impl AsFd, token: Token, writes: bool) {
        let _ = epoll::modify(&self.epoll, descriptor, token.data(), flags(writes));
    }

    /// Forgets a descriptor. One that is closed everywhere is forgotten by itself; a child may still hold it.
    pub(super) fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// What is ready; empty at `until`, or when the supervisor was woken.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Vec<Token> {
        if until != self.armed {
            self.arm(until);
        }
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        // An interrupted wait is one that found nothing.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
        let mut ready = Vec::with_capacity(events.len());
        for event in &events {
            match event.data.u64() {
                TIMER => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.timer, &mut count);
                    self.armed = None;
                }
                WAKE => {}
                data => ready.extend(Token::read(data)),
            }
        }
        ready
    }

    fn arm(&mut self, until: Option<Instant>) {
        // A value of zero would switch the timer off.
        let rest = until.map(|until| {
            let rest = until.saturating_duration_since(Instant::now());
            rest.max(Duration::from_nanos(1))
        });
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = rest
            .and_then(|rest| Timespec::try_from(rest).ok())
            .unwrap_or(zero);
        let timer = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
        self.armed = until;
    }
}

fn flags(writes: bool) -> EventFlags {
    if writes {
        EventFlags::IN | EventFlags::OUT
    } else {
        EventFlags::IN
    }
}
