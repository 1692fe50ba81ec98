//! Servers in namespaces: the contract of launchers, hostile servers, and what is left at the end. All of it inside the
//! throw-away world.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::ErrorKind;
use caliber_core::process::{ContainmentMeasure, Launch, LaunchedProcess, ProcessLauncher};
use caliber_core::reason::ReasonCode;
use caliber_sandbox::linux::launcher::{
    LauncherSettings, NamespaceLauncher, ServerLimits, ServerMatch, ServerProfile,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::attacks::host::{self, Host, Touch};
use crate::attacks::outer::{self, Identity, inside};
use crate::attacks::{catalogue, outer::FIRST_PID};

const END: Duration = Duration::from_secs(30);
/// Set in a control plane that is killed.
const PART: &str = "CALIBER_TEST_PART";

/// Runs a test as root and as nobody.
macro_rules! both {
    ($($name:ident => $body:ident;)*) => {
        mod root {
            use super::*;
            $(
                #[test]
                fn $name() {
                    inside(concat!("launcher::root::", stringify!($name)), Identity::Root, $body);
                }
            )*
        }
        mod nobody {
            use super::*;
            $(
                #[test]
                fn $name() {
                    inside(concat!("launcher::nobody::", stringify!($name)), Identity::Nobody, $body);
                }
            )*
        }
    };
}

both! {
    the_contract_of_launchers_holds => contract;
    hostile_servers_are_held => hostile_servers;
    nothing_is_left_of_a_server => nothing_is_left;
    nothing_is_left_when_the_control_plane_is_killed => killed_control_plane;
    a_server_reaches_what_its_profile_names => profiles;
    the_number_of_servers_is_limited => limited;
    containment_is_what_was_seen => containment;
    many_starts_leave_nothing_behind => many_starts;
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn launcher(settings: LauncherSettings) -> Arc<NamespaceLauncher> {
    Arc::new(NamespaceLauncher::new(settings).unwrap())
}

fn quick(profile: ServerProfile) -> LauncherSettings {
    LauncherSettings {
        input_grace: Duration::from_millis(300),
        term_grace: Duration::from_millis(300),
        profile,
        ..LauncherSettings::default()
    }
}

fn shell(script: &str, args: &[&str]) -> Launch {
    let mut words = vec!["-c".to_owned(), script.to_owned(), "sh".to_owned()];
    words.extend(args.iter().map(|word| (*word).to_owned()));
    Launch {
        executable: "/bin/sh".into(),
        args: words,
        env: BTreeMap::from([(
            "PATH".to_owned(),
            caliber_core::secret::SecretText::new("/usr/bin:/bin"),
        )]),
    }
}

/// An attack as a server: its answer comes on standard output.
fn attack(module: &str, callable: &str) -> Launch {
    let tools = outer::tools();
    Launch {
        executable: "/usr/bin/python3".into(),
        args: ["-I", "-S", "-B"]
            .into_iter()
            .map(str::to_owned)
            .chain([
                tools.join("control.py").display().to_string(),
                tools.display().to_string(),
            ])
            .chain([module.to_owned(), callable.to_owned()])
            .collect(),
        env: BTreeMap::new(),
    }
}

async fn answer(process: &mut LaunchedProcess, host: &Value) -> Value {
    let mut facts = host.clone();
    facts["answer"] = json!("-");
    facts["result_type"] = json!(3);
    let arguments = json!({ "host": facts }).to_string();
    process.stdin.write_all(arguments.as_bytes()).await.unwrap();
    process.stdin.shutdown().await.unwrap();
    let (mut output, mut errors) = (String::new(), String::new());
    let reading = async {
        while !output.ends_with('\n') {
            match process.stdout.read_u8().await {
                Ok(byte) => output.push(byte.into()),
                Err(_) => break,
            }
        }
    };
    let _ = tokio::time::timeout(END, reading).await;
    if output.is_empty() {
        let _ =
            tokio::time::timeout(Duration::from_secs(5), process.stderr.read_to_string(&mut errors)).await;
    }
    serde_json::from_str(&output).unwrap_or_else(|_| panic!("no answer: {output} {errors}"))
}

async fn all_of(stream: &mut (dyn tokio::io::AsyncRead + Send + Unpin)) -> String {
    let mut text = String::new();
    tokio::time::timeout(END, stream.read_to_string(&mut text))
        .await
        .expect("somebody still holds the stream")
        .unwrap();
    text
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "not within 10 seconds: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn contract() {
    runtime().block_on(caliber_core::conformance::process::run(async || {
        launcher(quick(ServerProfile::default())) as Arc<dyn ProcessLauncher>
    }));
}

/// The attacks that a server could make; a server may start programs and talk to its own processes.
const ATTACKS: &[(&str, &str)] = &[
    ("files", "read_passwords"),
    ("files", "reach_database"),
    ("files", "list_folders"),
    ("files", "write_module"),
    ("files", "leave_links"),
    ("files", "walk_out"),
    ("files", "reach_beside"),
    ("files", "inherited_descriptors"),
    ("files", "write_kernel_files"),
    ("processes", "read_processes"),
    ("processes", "trace"),
    ("processes", "send_signals"),
    ("processes", "signal_everybody"),
    ("processes", "change_limits"),
    ("processes", "list_processes"),
    ("processes", "fork_bomb"),
    ("processes", "thread_bomb"),
    ("processes", "set_user_id"),
    ("network", "tcp"),
    ("network", "tcp_listen"),
    ("network", "udp"),
    ("network", "interfaces"),
    ("network", "abstract_socket"),
    ("network", "path_socket"),
    ("network", "odd_sockets"),
    ("network", "shared_kernel_objects"),
    ("network", "io_uring"),
    ("kernel", "namespaces"),
    ("kernel", "programs_for_the_kernel"),
    ("kernel", "clone3"),
    ("kernel", "terminal"),
    ("kernel", "clock_and_names"),
    ("kernel", "raise_limits"),
    ("resources", "fill_scratch"),
    ("resources", "large_file"),
];

fn hostile_servers() {
    let mut host = Host::new("servers");
    let launcher = launcher(quick(ServerProfile {
        readable: vec![
            outer::tools(),
            host.shown(),
            outer::set_user_id().parent().unwrap().into(),
        ],
        limits: ServerLimits {
            address_space_bytes: Some(8 << 30),
            ..ServerLimits::default()
        },
        ..ServerProfile::default()
    }));
    let mut facts = host.facts();
    facts["folder"] = json!("/tmp");
    facts["count"] = json!(600);
    facts["bytes"] = json!(400 << 20);
    let mut problems = Vec::new();
    runtime().block_on(async {
        for (module, callable) in ATTACKS {
            let mut process = launcher.launch(attack(module, callable)).await.unwrap();
            let answer = answer(&mut process, &facts).await;
            let verdict = match answer.get("value") {
                Some(value) => catalogue::judge_answer(&value.to_string()),
                None => Err(answer.to_string()),
            };
            if let Err(problem) = verdict {
                problems.push(format!("{module}.{callable}: {problem}"));
            }
            process.handle.terminate().await;
            if !host::survivors().is_empty() {
                problems.push(format!("{module}.{callable}: something of it is left"));
            }
            let touched: BTreeSet<Touch> = host.touched();
            if !touched.is_empty() {
                problems.push(format!("{module}.{callable}: it got to {touched:?}"));
            }
        }
    });
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn nothing_is_left() {
    let host = Host::new("left");
    let launcher = launcher(quick(ServerProfile {
        readable: vec![outer::tools()],
        ..ServerProfile::default()
    }));
    runtime().block_on(async {
        for way in ["terminate", "drop", "end"] {
            let mut process = launcher.launch(attack("processes", "daemon")).await.unwrap();
            let answer = answer(&mut process, &host.facts()).await;
            assert_eq!(answer["value"]["result"], "works");
            match way {
                "terminate" => process.handle.terminate().await,
                "drop" => drop(process),
                _ => {
                    // It ends by itself once it has answered; what it left must not outlive it.
                    process.handle.wait().await;
                }
            }
            until(way, || host::survivors().is_empty());
        }
        // One that ignores everything and goes on.
        let stubborn = "import os, signal, sys, time; sys.path.insert(0, sys.argv[1]); import attempt; attempt.mark(); \
             [signal.signal(number, signal.SIG_IGN) for number in (1, 2, 15)]; print('ready', flush=True); time.sleep(600)";
        let mut launch = attack("processes", "daemon");
        launch.args = vec!["-I".into(), "-S".into(), "-B".into(), "-c".into(), stubborn.into()];
        launch.args.push(outer::tools().display().to_string());
        let mut process = launcher.launch(launch).await.unwrap();
        assert_eq!(process.stdout.read_u8().await.unwrap(), b'r');
        assert_eq!(host::survivors().len(), 1, "the names tell");
        process.handle.terminate().await;
        assert!(host::survivors().is_empty(), "terminate returns when none is left");
    });
}

/// Not a test of its own: a control plane with a server that hides a process, until it is killed.
#[test]
fn part_control_plane() {
    if std::env::var_os(PART).is_none() {
        return;
    }
    let launcher = launcher(LauncherSettings {
        profile: ServerProfile {
            readable: vec![outer::tools()],
            ..ServerProfile::default()
        },
        ..LauncherSettings::default()
    });
    runtime().block_on(async {
        let mut launch = attack("processes", "daemon");
        // A server that goes on after the attack.
        launch.args.insert(3, "-i".into());
        let mut process = launcher.launch(launch).await.unwrap();
        let arguments = json!({"host": {"answer": "-"}}).to_string();
        process.stdin.write_all(arguments.as_bytes()).await.unwrap();
        process.stdin.shutdown().await.unwrap();
        let mut first = [0];
        process.stdout.read_exact(&mut first).await.unwrap();
        println!("a server runs as {}", process.handle.id());
        tokio::time::sleep(Duration::from_secs(300)).await;
        drop(process);
    });
}

fn killed_control_plane() {
    let mut plane = Command::new(std::env::current_exe().unwrap())
        .args([
            "launcher::part_control_plane",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PART, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(plane.stdout.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|line| line.contains("a server runs as")))
        .expect("it starts a server")
        .unwrap();
    assert_eq!(host::survivors().len(), 1, "the hidden process runs");
    let server = || {
        host::processes(|pid| {
            pid > FIRST_PID
                && !host::is_zombie(pid)
                && fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).contains("control.py"))
        })
    };
    plane.kill().unwrap();
    plane.wait().unwrap();
    until("the end of everything that it started", || {
        host::survivors().is_empty() && server().is_empty()
    });
}

fn folder(path: &Path) -> PathBuf {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    path.to_owned()
}

fn profiles() {
    let mut host = Host::new("profiles");
    let readable = folder(&host.folder().join("readable"));
    let writable = folder(&host.folder().join("writable"));
    fs::write(readable.join("file"), "readable").unwrap();
    let with_network = ServerProfile {
        network: true,
        readable: vec![outer::tools()],
        ..ServerProfile::default()
    };
    let launcher = launcher(LauncherSettings {
        profiles: vec![(
            ServerMatch {
                executable: "/usr/bin/python3".into(),
                args: vec!["-I".into()],
            },
            with_network,
        )],
        ..quick(ServerProfile {
            readable: vec![readable.clone()],
            writable: vec![writable.clone()],
            ..ServerProfile::default()
        })
    });
    runtime().block_on(async {
        let script = "cat \"$1/file\"; echo; echo changed > \"$2/file\" && echo wrote; \
            (echo x > \"$1/file\") 2>/dev/null || echo refused; \
            (echo x > /usr/bin/x) 2>/dev/null || echo refused; \
            echo x > file && echo x > /tmp/file && echo x > /dev/shm/file && echo scratch; \
            cp /bin/true \"$2/program\"; \"$2/program\" 2>/dev/null || echo not executed; \
            pwd; echo \"$HOME $TMPDIR\"; echo x > /dev/null && echo null";
        let paths = [readable.display().to_string(), writable.display().to_string()];
        let mut process = launcher
            .launch(shell(script, &[&paths[0], &paths[1]]))
            .await
            .unwrap();
        let printed = all_of(&mut *process.stdout).await;
        let errors = all_of(&mut *process.stderr).await;
        let expected = "readable\nwrote\nrefused\nrefused\nscratch\nnot executed\n/home/server\n/home/server /tmp\nnull\n";
        assert_eq!(printed, expected, "{errors}");
        assert_eq!(fs::read_to_string(writable.join("file")).unwrap(), "changed\n");

        // With the host's network a server reaches a listener, and still no socket by name.
        let mut process = launcher.launch(attack("network", "tcp")).await.unwrap();
        let reached = answer(&mut process, &host.facts()).await;
        assert_eq!(reached["value"]["connect"], "won", "{reached}");
        process.handle.terminate().await;
        assert_eq!(host.touched(), BTreeSet::from([Touch::Tcp]));
        for (callable, attempt) in [("abstract_socket", "connect"), ("path_socket", "connect"), ("odd_sockets", "vsock")] {
            let mut process = launcher.launch(attack("network", callable)).await.unwrap();
            let held = answer(&mut process, &host.facts()).await;
            assert_ne!(held["value"][attempt], "won", "{callable}: {held}");
            process.handle.terminate().await;
        }
        assert_eq!(host.touched(), BTreeSet::new());
    });
}

fn limited() {
    let launcher = launcher(LauncherSettings {
        children: 2,
        ..quick(ServerProfile::default())
    });
    runtime().block_on(async {
        let waiting = || shell("id -u; read line", &[]);
        let mut one = launcher.launch(waiting()).await.unwrap();
        let mut two = launcher.launch(waiting()).await.unwrap();
        let error = launcher.launch(waiting()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.reason(), Some(ReasonCode::ServerBusy));
        let (mut users, is_root) = (BTreeSet::new(), rustix::process::geteuid().is_root());
        for process in [&mut one, &mut two] {
            let mut user = Vec::new();
            while user.last() != Some(&b'\n') {
                user.push(process.stdout.read_u8().await.unwrap());
            }
            users.insert(String::from_utf8(user).unwrap());
        }
        assert_eq!(users.len(), if is_root { 2 } else { 1 }, "{users:?}");
        assert!(!users.contains("0\n"));
        one.handle.terminate().await;
        let three = launcher.launch(waiting()).await.expect("its place is free");
        drop((two, three));
    });
}

fn find<'a>(measures: &'a [ContainmentMeasure], name: &str) -> &'a ContainmentMeasure {
    measures.iter().find(|measure| measure.measure == name).unwrap()
}

fn containment() {
    let is_root = rustix::process::geteuid().is_root();
    let measures = launcher(quick(ServerProfile::default())).containment();
    // Only root gives servers users and control groups.
    let missing: BTreeSet<&str> = measures
        .iter()
        .filter(|measure| !measure.enforced)
        .map(|measure| measure.measure.as_str())
        .collect();
    let expected: &[&str] = if is_root {
        &[]
    } else {
        &["memory_limit", "own_user"]
    };
    assert_eq!(missing, expected.iter().copied().collect(), "{measures:#?}");

    let open = launcher(quick(ServerProfile {
        network: true,
        ..ServerProfile::default()
    }))
    .containment();
    assert!(!find(&open, "network_namespace").enforced, "{open:#?}");
    assert!(find(&open, "process_namespace").enforced);
    assert!(host::survivors().is_empty());
}

#[test]
fn where_namespaces_are_refused_nothing_is_started_and_that_is_told_as_root() {
    let name = "launcher::where_namespaces_are_refused_nothing_is_started_and_that_is_told_as_root";
    inside(name, Identity::RootInDocker, refused);
}

#[test]
fn where_namespaces_are_refused_nothing_is_started_and_that_is_told_as_nobody() {
    let name = "launcher::where_namespaces_are_refused_nothing_is_started_and_that_is_told_as_nobody";
    inside(name, Identity::NobodyInDocker, refused);
}

fn refused() {
    let writable = folder(&outer::folder().join("writable"));
    let launcher = launcher(quick(ServerProfile {
        writable: vec![writable.clone()],
        ..ServerProfile::default()
    }));
    let path = writable.display().to_string();
    let error = runtime()
        .block_on(launcher.launch(shell("echo ran > \"$1/ran\"", &[&path])))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.reason(), Some(ReasonCode::SandboxUnavailable));
    assert!(error.to_string().contains("clone"), "{error}");
    assert!(!writable.join("ran").exists(), "nothing ran");
    let measures = launcher.containment();
    for name in [
        "process_namespace",
        "private_file_tree",
        "network_namespace",
        "system_call_filter",
        "landlock",
    ] {
        let measure = find(&measures, name);
        assert!(!measure.enforced && measure.note.contains("clone"), "{measure:?}");
    }
}

fn many_starts() {
    let launcher = launcher(quick(ServerProfile::default()));
    let runtime = runtime();
    let start = || {
        runtime.block_on(async {
            let mut process = launcher.launch(shell("echo started", &[])).await.unwrap();
            assert_eq!(all_of(&mut *process.stdout).await, "started\n");
            process.handle.terminate().await;
        });
    };
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    let mounts = || {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .count()
    };
    start();
    let before = (count("/proc/self/fd"), mounts());
    for _ in 0..100 {
        start();
    }
    assert_eq!((count("/proc/self/fd"), mounts()), before);
    // A thread is gone a moment after it has told the end of its child.
    until("the end of the threads", || {
        fs::read_dir("/proc/self/task").unwrap().flatten().all(|task| {
            fs::read_to_string(task.path().join("comm")).map_or(true, |name| name.trim() != "caliber-server")
        })
    });
    drop(launcher);
}
