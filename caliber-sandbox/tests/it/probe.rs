//! The report is what was seen, here and where a container forbids namespaces.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use caliber_core::clock::Deadline;
use caliber_core::sandbox::{Enforcement, Guarantee, Program, Sandbox, SandboxReport};
use caliber_sandbox::linux::probe::probe;
use caliber_sandbox::{LocalSandbox, SandboxSettings};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::support::{LONG, is_alone, request, value};

/// Set in a copy of this binary that starts a sandbox under a container's filter and prints the report.
const CONTAINED: &str = "CALIBER_SANDBOX_TEST_CONTAINED";
/// What stands before the report in the output of such a copy.
const MARK: &str = "report:";

fn settings() -> (SandboxSettings, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let settings = SandboxSettings {
        snapshot_folder: folder.path().join("snapshots"),
        // Not in the group of whoever runs the tests.
        control_group: Some("/".into()),
        ..SandboxSettings::default()
    };
    (settings, folder)
}

fn state(report: &SandboxReport, guarantee: Guarantee) -> &Enforcement {
    &report.guarantees[&guarantee]
}

#[test]
fn this_machine_enforces_what_is_required() {
    let (settings, _folder) = settings();
    let probe = probe(&settings, None);
    let report = &probe.report;
    assert_eq!(report.problem, None);
    assert_eq!(report.guarantees.len(), Guarantee::ALL.len());
    assert_eq!(report.missing(), [], "{report:#?}");
    assert!(report.is_available());
    assert!(report.interpreter.as_ref().unwrap().contains("Python 3."));
    let layers = probe.layers.unwrap();
    assert!(layers.namespaces && layers.seccomp && layers.unenforced.is_empty());
    assert!(probe.forks, "no call was seen to be forked");
    let by = |guarantee| match state(report, guarantee) {
        Enforcement::Enforced { by } => by.clone(),
        other => panic!("{guarantee:?}: {other:?}"),
    };
    assert!(by(Guarantee::FsRead).contains(&"mount_namespace".to_owned()));
    assert!(by(Guarantee::SyscallSurface).contains(&"seccomp".to_owned()));
    assert!(by(Guarantee::TreeKill).contains(&"pid_namespace".to_owned()));
    assert!(by(Guarantee::SourcePinned).contains(&"snapshot".to_owned()));
    if rustix::process::geteuid().is_root() {
        assert!(by(Guarantee::TreeMemory)[0].ends_with(":memory"));
        assert!(by(Guarantee::TreePids)[0].ends_with(":pids"));
    }
}

/// In a process of its own: what a probe lays out is named by the process, and other tests of this one probe, too.
#[test]
fn a_probe_leaves_nothing() {
    if !is_alone("probe::a_probe_leaves_nothing") {
        return;
    }
    let (settings, _folder) = settings();
    assert_eq!(probe(&settings, None).report.problem, None);
    assert!(
        std::fs::read_dir("/tmp").unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("caliber-probe-{}-", std::process::id()))),
        "a probe left something"
    );
}

#[test]
fn an_interpreter_that_is_none_is_a_problem_and_nothing_is_claimed() {
    for path in ["/no/such/python3", "/bin/true", "python3"] {
        let (mut settings, _folder) = settings();
        settings.interpreter = path.into();
        let probe = probe(&settings, None);
        assert!(probe.report.problem.is_some(), "{path}");
        assert!(!probe.report.is_available());
        assert!(probe.layers.is_none());
        assert!(!probe.report.guarantees.values().any(Enforcement::is_enforced));
    }
}

#[test]
fn sources_that_cannot_be_kept_are_said_not_to_be_pinned() {
    let (settings, _folder) = settings();
    let error = caliber_core::Error::new(caliber_core::ErrorKind::Unavailable, "the disk is full");
    let report = probe(&settings, Some(&error)).report;
    assert_eq!(report.missing(), [Guarantee::SourcePinned]);
    assert!(!report.is_available());
    match state(&report, Guarantee::SourcePinned) {
        Enforcement::NotEnforced { stage, remedy, .. } => {
            assert_eq!(stage, "snapshot_folder");
            assert_eq!(remedy, "the disk is full");
        }
        other => panic!("{other:?}"),
    }
}

/// A refusal of everything that `flags` has a bit of, in argument 0.
fn any_of(flags: u64) -> Vec<SeccompRule> {
    (0..32)
        .map(|bit| 1_u64 << bit)
        .filter(|bit| flags & bit != 0)
        .map(|bit| {
            let condition =
                SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bit), bit).unwrap();
            SeccompRule::new(vec![condition]).unwrap()
        })
        .collect()
}

fn filter(refused: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> BpfProgram {
    SeccompFilter::new(
        refused,
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    )
    .unwrap()
    .try_into()
    .unwrap()
}

/// What the default profile of a container engine refuses.
fn contain() {
    const NEW: i32 = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let namespaces = NEW as u32 as u64;
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = [
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_setns,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_fsopen,
        libc::SYS_mount_setattr,
    ]
    .into_iter()
    .map(|number| (number, Vec::new()))
    .collect();
    refused.insert(libc::SYS_clone, any_of(namespaces));
    refused.insert(libc::SYS_unshare, any_of(namespaces));
    let hidden = [(libc::SYS_clone3, Vec::new())].into_iter().collect();
    for program in [filter(refused, libc::EPERM), filter(hidden, libc::ENOSYS)] {
        // Of all threads: the runtime has more than this one.
        seccompiler::apply_filter_all_threads(&program).unwrap();
    }
}

/// A machine on which only these calls fail.
fn refuse(numbers: &[i64], errno: i32) {
    let refused = numbers.iter().map(|number| (*number, Vec::new())).collect();
    seccompiler::apply_filter_all_threads(&filter(refused, errno)).unwrap();
}

#[test]
fn a_contained_copy_prints_its_report() {
    let Some(how) = std::env::var_os(CONTAINED) else {
        return;
    };
    match how.to_str().unwrap() {
        "container" => contain(),
        // As AppArmor does on Ubuntu: the namespace is made, and has no rights.
        "powerless" => refuse(&[libc::SYS_mount], libc::EACCES),
        "no landlock" => refuse(&[libc::SYS_landlock_create_ruleset], libc::EOPNOTSUPP),
        other => panic!("{other}"),
    }
    let (mut settings, folder) = settings();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let sandbox = LocalSandbox::start(settings.clone()).await.unwrap();
        println!("{MARK}{}", serde_json::to_string(&*sandbox.report()).unwrap());
        let reserved = sandbox.reserve(Deadline::after(LONG)).await;
        let refusal = reserved.map_or_else(|error| error.to_string(), |_| String::new());
        println!("{MARK}{refusal}");
    });
    settings.allow_unenforced = true;
    runtime.block_on(async {
        let root = folder.path().canonicalize().unwrap().join("source");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("tool.py"), "def run(a): return a + 1\n").unwrap();
        let sandbox = LocalSandbox::start(settings).await.unwrap();
        println!("{MARK}{}", serde_json::to_string(&*sandbox.report()).unwrap());
        let program = Program::Python {
            module_path: "tool".into(),
            callable_name: "run".into(),
            source_roots: vec![root],
            package_roots: Vec::new(),
        };
        let pinned = sandbox.pin(&program, Deadline::after(LONG)).await.unwrap();
        let request = request(&Arc::new(pinned), r#"{"a":1}"#);
        let outcome = sandbox.run_unadmitted(request).await.unwrap();
        println!("{MARK}{} {:?}", value(&outcome), outcome.unenforced);
        sandbox.close(Deadline::after(LONG)).await;
    });
}

/// What a copy of this binary says on a machine that is like `how`.
fn lines_of_a_copy(how: &str) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "probe::a_contained_copy_prints_its_report",
            "--nocapture",
        ])
        .env(CONTAINED, how)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once(MARK))
        .map(|(_, line)| line.to_owned())
        .collect();
    assert_eq!(
        lines.len(),
        4,
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    lines
}

#[test]
fn namespaces_without_rights_are_none() {
    let lines = lines_of_a_copy("powerless");
    let report: SandboxReport = serde_json::from_str(&lines[0]).unwrap();
    assert!(!report.is_available());
    let open = ["mount_private", "EACCES"];
    match state(&report, Guarantee::FsRead) {
        Enforcement::Partial { gaps, .. } => {
            assert!(
                gaps.last().unwrap().contains("mount_private failed with EACCES"),
                "{gaps:?}"
            );
        }
        Enforcement::NotEnforced { stage, errno, .. } => assert_eq!([stage, errno], open),
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_landlock_a_private_root_is_enough_and_is_said_to_be_all() {
    let lines = lines_of_a_copy("no landlock");
    let report: SandboxReport = serde_json::from_str(&lines[0]).unwrap();
    assert!(report.is_available(), "{report:?}");
    for guarantee in [Guarantee::FsRead, Guarantee::FsWrite] {
        let by = vec!["mount_namespace".to_owned()];
        assert_eq!(state(&report, guarantee), &Enforcement::Enforced { by });
    }
}

#[test]
fn in_a_container_the_report_is_truthful_and_the_default_refuses() {
    let lines = lines_of_a_copy("container");
    let report: SandboxReport = serde_json::from_str(&lines[0]).unwrap();
    assert!(!report.is_available());
    assert_eq!(report.problem, None);
    match state(&report, Guarantee::TreeKill) {
        Enforcement::NotEnforced { stage, errno, remedy } => {
            assert_eq!((stage.as_str(), errno.as_str()), ("clone", "EPERM"));
            assert!(remedy.contains("caliber sandbox serve"), "{remedy}");
        }
        // Where control groups of version 2 can be made, they end a tree.
        Enforcement::Enforced { by } => assert_eq!(by, &["cgroup_v2:kill"]),
        other => panic!("{other:?}"),
    }
    // What Landlock and the filter still hold is said to be held by them, and by nothing else.
    assert_eq!(
        state(&report, Guarantee::Net),
        &Enforcement::Enforced {
            by: vec!["seccomp".to_owned()]
        }
    );
    match state(&report, Guarantee::FsRead) {
        Enforcement::Partial { by, gaps } => {
            assert!(by[0].starts_with("landlock:"));
            assert_eq!(gaps[0], "file_metadata");
            assert!(gaps[1].starts_with("step clone failed with EPERM: "), "{gaps:?}");
        }
        Enforcement::NotEnforced { stage, .. } => assert_eq!(stage, "landlock"),
        other => panic!("{other:?}"),
    }
    assert!(!state(&report, Guarantee::ProcVisibility).is_enforced());
    let refusal = &lines[1];
    assert!(refusal.contains("fs_read"), "{refusal}");
    assert!(refusal.contains("caliber sandbox serve"), "{refusal}");
    let allowed: SandboxReport = serde_json::from_str(&lines[2]).unwrap();
    assert!(allowed.is_available());
    assert_eq!(allowed.missing(), report.missing());
    // What the operator allows runs, and says what did not hold.
    assert_eq!(lines[3], format!("2 {:?}", report.missing()));
    assert!(state(&report, Guarantee::SyscallSurface).is_enforced());
}
