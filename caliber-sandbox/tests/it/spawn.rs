//! Children with all layers, looked at from inside and outside.

use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use caliber_sandbox::linux::confinement::{
    Confinement, Identity, LandlockRules, Namespaces, ProcessLimits, Root, RootEntry, SeccompProfile,
};
use caliber_sandbox::linux::spawn::{Descriptors, SpawnFailure, Stage, prepare, spawn};
use rustix::process::WaitIdStatus;

fn text(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn bind(path: &str) -> RootEntry {
    RootEntry::Bind {
        source: PathBuf::from(path),
        target: PathBuf::from(path),
        writable: false,
    }
}

/// A shell with all layers.
fn confined(script: &str) -> Confinement {
    let root = rustix::process::geteuid().is_root();
    Confinement {
        executable: text("/usr/bin/dash"),
        args: vec![text("sh"), text("-c"), text(script)],
        env: vec![text("PATH=/usr/bin")],
        directory: text("/tmp"),
        root: Some(Root {
            entries: vec![
                bind("/usr"),
                RootEntry::Symlink {
                    target: PathBuf::from("/lib"),
                    content: PathBuf::from("usr/lib"),
                },
                RootEntry::Symlink {
                    target: PathBuf::from("/lib64"),
                    content: PathBuf::from("usr/lib64"),
                },
                RootEntry::Device {
                    path: PathBuf::from("/dev/null"),
                },
                RootEntry::Tmpfs {
                    target: PathBuf::from("/tmp"),
                    bytes: 1 << 20,
                    inodes: 64,
                },
                RootEntry::Proc {
                    target: PathBuf::from("/proc"),
                },
            ],
        }),
        namespaces: Namespaces::all(!root),
        identity: if root {
            Identity::Other { id: 2_000_000_007 }
        } else {
            Identity::Caller
        },
        limits: ProcessLimits {
            address_space: Some(256 << 20),
            processes: Some(16),
            file_size: Some(1 << 20),
            open_files: Some(32),
            cpu_seconds: Some(10),
            keep_other: false,
        },
        landlock: Some(LandlockRules {
            read: vec![PathBuf::from("/usr"), PathBuf::from("/proc")],
            write: vec![PathBuf::from("/tmp"), PathBuf::from("/dev/null")],
            network: false,
        }),
        seccomp: Some(SeccompProfile::Tool),
        init: false,
        session: true,
    }
}

fn run(confinement: &Confinement) -> Result<(i32, String), SpawnFailure> {
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let prepared = Arc::new(prepare(confinement)?);
    let descriptors = Descriptors {
        stdin: null.as_fd(),
        stdout: writer.as_fd(),
        stderr: writer.as_fd(),
        channel: None,
        cgroups: &[],
    };
    // The child lives as long as the thread that made it, which is this one.
    let mut child = spawn(&prepared, descriptors)?;
    drop(writer);
    let mut output = String::new();
    std::fs::File::from(reader).read_to_string(&mut output).unwrap();
    let status = wait(&mut child);
    Ok((status.exit_status().unwrap_or(-1), output))
}

fn wait(child: &mut caliber_sandbox::linux::spawn::Child) -> WaitIdStatus {
    loop {
        let pidfd = child.pidfd().try_clone_to_owned().unwrap();
        let mut poll = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, None).unwrap();
        if let Some(status) = child.collect().unwrap() {
            return status;
        }
    }
}

#[test]
fn all_layers_hold_together() {
    let (code, output) = run(&confined(
        "id -u; cat /proc/self/status; ls /proc; touch /tmp/here && echo written; \
         touch /usr/there 2>/dev/null || echo refused; ls /etc 2>/dev/null || echo no etc; exit 7",
    ))
    .unwrap();
    assert_eq!(code, 7, "{output}");
    let root = rustix::process::geteuid().is_root();
    assert!(
        output.starts_with(if root { "2000000007\n" } else { "65534\n" }),
        "{output}"
    );
    for line in [
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
    ] {
        assert!(output.contains(line), "{line}: {output}");
    }
    for word in ["written\n", "refused\n", "no etc\n"] {
        assert!(output.contains(word), "{word}: {output}");
    }
    // The shell and the program that looks are there to be seen.
    let visible = output
        .lines()
        .skip(1)
        .filter(|line| line.parse::<u32>().is_ok())
        .count();
    assert!(visible <= 2, "{output}");
}

#[test]
fn a_step_that_fails_is_named_and_nothing_runs() {
    let mut confinement = confined("echo ran");
    confinement.executable = text("/usr/bin/there-is-no-such-program");
    let failure = run(&confinement).unwrap_err();
    assert_eq!(failure.stage, Stage::Exec);
    assert_eq!(failure.errno, rustix::io::Errno::NOENT);

    let mut confinement = confined("echo ran");
    confinement.directory = text("/nowhere");
    assert_eq!(run(&confinement).unwrap_err().stage, Stage::Directory);

    let mut confinement = confined("echo ran");
    if let Some(rules) = &mut confinement.landlock {
        rules.read.push(PathBuf::from("/nowhere"));
    }
    let failure = run(&confinement).unwrap_err();
    assert_eq!(failure.stage, Stage::Landlock);
    assert_eq!(failure.detail.as_deref(), Some("/nowhere"));

    let mut confinement = confined("echo ran");
    if let Some(root) = &mut confinement.root {
        root.entries.push(bind("/nowhere"));
    }
    assert_eq!(run(&confinement).unwrap_err().stage, Stage::Prepare);
}

#[test]
fn a_small_first_process_passes_signals_on_and_says_how_the_program_ended() {
    let mut confinement = confined("(sleep 0.01 &) ; kill -TERM $$; sleep 5");
    confinement.init = true;
    let (code, _) = run(&confinement).unwrap();
    assert_eq!(code, 128 + 15);

    let mut confinement = confined("echo $$; cat /proc/1/maps >/dev/null 2>&1 || echo hidden; exit 3");
    confinement.init = true;
    let (code, output) = run(&confinement).unwrap();
    assert_eq!((code, output.as_str()), (3, "2\nhidden\n"));
}

#[test]
fn a_source_that_was_replaced_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tool");
    std::fs::create_dir(&source).unwrap();
    let mut confinement = confined("cat /tool/word");
    if let Some(root) = &mut confinement.root {
        root.entries.push(RootEntry::Bind {
            source: source.clone(),
            target: PathBuf::from("/tool"),
            writable: false,
        });
    }
    let prepared = Arc::new(prepare(&confinement).unwrap());
    std::fs::rename(&source, folder.path().join("before")).unwrap();
    std::fs::create_dir(&source).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let descriptors = Descriptors {
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        channel: None,
        cgroups: &[],
    };
    let failure = spawn(&prepared, descriptors).unwrap_err();
    assert_eq!(failure.stage, Stage::MountBind);
    assert_eq!(failure.errno, rustix::io::Errno::STALE);
    assert_eq!(failure.detail.as_deref(), Some(source.to_str().unwrap()));
}
