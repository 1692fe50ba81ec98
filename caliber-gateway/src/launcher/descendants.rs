//! Finding and ending the processes that carry a marker, wherever they hide in the process tree.

use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};

use super::MARKER;

/// The longest environment that is read; the kernel takes less than this from whoever starts a program.
const ENVIRONMENT_BYTES: u64 = 8 << 20;

/// How long the list of processes rests between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Every running process with `marker` in the environment that it was started with. A zombie has none.
pub(super) fn marked(marker: &str) -> io::Result<Vec<Pid>> {
    let entry = format!("{MARKER}={marker}");
    let mut environment = Vec::new();
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")? {
        let name = process?.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid
            && carries(pid, entry.as_bytes(), &mut environment)
        {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Kills every process that carries `marker`, until two looks in a row found none or `limit` has passed. Returns
/// whether none is left.
pub(super) fn kill_marked(marker: &str, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    let mut killed = Vec::new();
    let mut clean_looks = 0;
    while clean_looks < 2 {
        match marked(marker) {
            Ok(found) if found.is_empty() => clean_looks += 1,
            Ok(found) => {
                clean_looks = 0;
                for pid in found {
                    kill_if_marked(pid, marker);
                    killed.push(pid);
                }
            }
            Err(_) => return false,
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    // Orphans become children of process 1. If that is us, nobody else will ever ask how they ended.
    while killed.iter().any(|pid| is_unreaped_child(*pid)) && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    true
}

/// Kills `pid` if it still is the process that was found: its number may have been given to another one.
fn kill_if_marked(pid: Pid, marker: &str) {
    let entry = format!("{MARKER}={marker}");
    match pidfd_open(pid, PidfdFlags::empty()) {
        // The descriptor holds the process; what is found in `/proc` now is about it or about nobody.
        Ok(process) => {
            if carries(pid, entry.as_bytes(), &mut Vec::new()) {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        Err(rustix::io::Errno::SRCH) => {}
        // A kernel before 5.3.
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Whether `pid` is a child of ours that runs or has just been reaped here; never true for a foreign process.
fn is_unreaped_child(pid: Pid) -> bool {
    matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}

/// Whether the environment of `pid` holds `entry`. Processes of other users do not let us read it.
fn carries(pid: Pid, entry: &[u8], environment: &mut Vec<u8>) -> bool {
    environment.clear();
    let read = File::open(format!("/proc/{}/environ", pid.as_raw_nonzero()))
        .and_then(|file| file.take(ENVIRONMENT_BYTES).read_to_end(environment));
    read.is_ok() && environment.split(|byte| *byte == 0).any(|found| found == entry)
}
