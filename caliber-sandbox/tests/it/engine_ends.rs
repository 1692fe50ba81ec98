//! How calls end: by a result, by the end of their process, or by their deadline.

use std::time::{Duration, SystemTime};

use caliber_core::clock::Deadline;
use caliber_core::sandbox::RunStatus;

use crate::support::{Rig, request};

/// Writes its own result a moment before its deadline, and holds the channel open.
const LATE: &str = "\
import os, sys, time
def run(at):
    frame = sys._getframe()
    while 'nonce' not in frame.f_locals:
        frame = frame.f_back
    nonce, payload = frame.f_locals['nonce'], b'\"in time\"'
    time.sleep(max(0, at - time.time()))
    os.write(3, (17 + len(payload)).to_bytes(4, 'little') + b'\\3' + nonce + payload)
    time.sleep(600)
";

#[test]
fn a_result_that_came_in_time_is_the_outcome() {
    let rig = Rig::new();
    let program = rig.python(LATE);
    // The result is written in the last moments; a busy machine may be too late now and then.
    let last = (0..8).map(|_| {
        let time = Duration::from_secs(2);
        let end = SystemTime::now() + time;
        let at = end.duration_since(SystemTime::UNIX_EPOCH).unwrap() - Duration::from_millis(120);
        let mut request = request(&program, &format!(r#"{{"at":{}}}"#, at.as_secs_f64()));
        request.deadline = Deadline::after(time);
        rig.run(request).status
    });
    let mut seen = Vec::new();
    for status in last {
        if matches!(&status, RunStatus::Ok { value } if value.as_str() == r#""in time""#) {
            return;
        }
        seen.push(status);
    }
    panic!("{seen:?}");
}
