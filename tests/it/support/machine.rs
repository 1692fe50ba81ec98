//! What the kernel says about processes: descendants, memory, descriptors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A process of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Its identifier.
    pub(crate) id: u32,
    /// What it was started with.
    pub(crate) arguments: Vec<String>,
    parent: u32,
    is_zombie: bool,
}

/// What the tests themselves have started: no concern of the oracles.
static OURS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Notes a process that the test itself has started, so that no oracle counts it.
pub(super) fn note_as_ours(id: u32) {
    OURS.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
}

/// The living descendants of the process `root` that no test started itself. Those that ended and were not waited
/// for count.
pub(crate) fn descendants(root: u32) -> Vec<Process> {
    let all = processes();
    let ours = OURS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in all
            .iter()
            .filter(|process| process.parent == parent && !ours.contains(&process.id))
        {
            parents.push(process.id);
            found.push(process.clone());
        }
    }
    found
}

/// The living processes of this machine that have a text in their arguments, wherever they stand in the tree. This
/// process does not count, and what has ended does not.
pub(crate) fn processes_with(marker: &str) -> Vec<Process> {
    let has = |process: &Process| process.arguments.iter().any(|argument| argument.contains(marker));
    processes()
        .into_iter()
        .filter(|process| process.id != std::process::id() && !process.is_zombie && has(process))
        .collect()
}

/// Whether a process runs (one that has ended and was not waited for does not).
pub(crate) fn is_running(id: u32) -> bool {
    read_process(id).is_some_and(|process| !process.is_zombie)
}

/// Sends a signal, such as `STOP`, to a process that this test has caused.
pub(crate) fn signal(id: u32, name: &str) {
    let sent = std::process::Command::new("kill")
        .args([&format!("-{name}"), "--", &id.to_string()])
        .status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "process {id} takes no signal {name}"
    );
}

/// Sends a signal to a process group that this test has made, if there is anybody left in it.
pub(super) fn signal_group(id: u32, name: &str) {
    let mut kill = std::process::Command::new("kill");
    kill.args([&format!("-{name}"), "--", &format!("-{id}")])
        .stderr(std::process::Stdio::null());
    let _ = kill.status();
}

fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("/proc can be read");
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // One that ends meanwhile is not there any more.
    ids.filter_map(read_process).collect()
}

fn read_process(id: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name stands in brackets and may hold anything, brackets too.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let arguments = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
    let arguments = arguments
        .split(|byte| *byte == 0)
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect();
    Some(Process {
        id,
        arguments,
        parent,
        is_zombie,
    })
}

/// The memory that this process has in use, in bytes.
pub(super) fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// The most memory that this process had in use since [`reset_peak`], in bytes.
pub(super) fn peak_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// Starts the measurement of [`peak_bytes`] anew.
pub(super) fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak of the memory can be reset");
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status can be read");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .expect("the field is there");
    let kilobytes: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("the field is a number of kB");
    kilobytes << 10
}

/// The open descriptors of this process and what each points to.
pub(super) fn descriptors() -> BTreeMap<u32, String> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd can be read");
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // The descriptor of this very listing is gone when it is looked at.
    numbers
        .filter_map(|number| Some((number, link(Path::new(&format!("/proc/self/fd/{number}")))?)))
        .collect()
}

fn link(path: &Path) -> Option<String> {
    Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned())
}
