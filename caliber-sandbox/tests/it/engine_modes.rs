//! The ways of making processes: what they share, what they keep apart, and what they leave behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::ErrorKind;
use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    ExecutionMode, ExecutionPreference, Guarantee, PinnedProgram, RunOutcome, RunStatus,
};

use caliber_sandbox::linux::layers::Layers;

use crate::support::{LONG, Rig, all_layers, request, value};

/// Runs until a call was made in this way, at most for a while.
fn run_until(rig: &Rig, program: &Arc<PinnedProgram>, arguments: &str, mode: ExecutionMode) -> RunOutcome {
    let end = Instant::now() + LONG;
    loop {
        let outcome = rig.run(request(program, arguments));
        if outcome.mode == mode {
            return outcome;
        }
        assert!(
            Instant::now() < end,
            "no call was made as {mode:?}; the last one as {:?}",
            outcome.mode
        );
    }
}

/// Leaves traces everywhere, and looks for those of others.
const TRACES: &str = "\
import os, tempfile
seen = []
def run(name):
    found = sorted(os.listdir('.')) + sorted(os.listdir(tempfile.gettempdir())) + seen
    seen.append(name)
    os.environ['TRACE'] = name
    for folder in ('.', tempfile.gettempdir(), '/scratch/0', '/scratch/1'):
        try:
            open(os.path.join(folder, name), 'w').write('x')
        except OSError:
            pass
    return found
";

#[test]
fn nothing_of_one_call_is_left_for_the_next() {
    let rig = Rig::new();
    let program = rig.python(TRACES);
    for mode in [ExecutionMode::Zygote, ExecutionMode::Spare, ExecutionMode::Spare] {
        assert_eq!(
            value(&run_until(&rig, &program, r#"{"name":"a"}"#, mode)),
            "[]",
            "{mode:?}"
        );
    }
    for _ in 0..3 {
        let mut cold = request(&program, r#"{"name":"a"}"#);
        cold.preference = ExecutionPreference::Cold;
        assert_eq!(value(&rig.run(cold)), "[]");
    }
}

#[test]
fn a_module_is_imported_once_and_its_calls_are_first_calls() {
    let rig = Rig::new();
    let program = rig.python(
        "import os, random, time\nstamp = time.monotonic_ns()\ncount = 0\n\
         def run():\n    global count\n    count += 1\n    return [stamp, count, os.getpid(), random.random()]",
    );
    let (mut stamps, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..10 {
        let outcome = rig.run(request(&program, "{}"));
        let RunStatus::Ok { value } = &outcome.status else {
            panic!("{outcome:?}");
        };
        let (stamp, count, pid, number): (u64, u32, u32, f64) = value.read().unwrap();
        stamps.insert(stamp);
        numbers.insert(number.to_bits());
        // The first process of a namespace of its own, each time.
        assert_eq!((count, pid), (1, 1));
        assert!(matches!(
            outcome.mode,
            ExecutionMode::Zygote | ExecutionMode::Spare
        ));
    }
    assert_eq!((stamps.len(), numbers.len()), (1, 10));
}

#[test]
fn a_forked_call_has_every_layer() {
    let rig = Rig::new();
    let program = rig.python(
        "import ctypes, os, socket\ndef attempt(f):\n    try: f()\n    except BaseException as e: return type(e).__name__\n    return 'done'\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def run():\n    status = {l.split(':')[0]: l.split(':')[1].strip() for l in open('/proc/self/status')}\n    \
         return [status['NoNewPrivs'], status['Seccomp'], int(status['CapEff'], 16), int(status['CapPrm'], 16),\n        \
         sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4],\n        \
         sorted(n for n in os.listdir('/proc') if n.isdigit()),\n        \
         attempt(lambda: socket.socket()), attempt(lambda: os.kill(os.getppid() or 2, 9)),\n        \
         libc.unshare(0x10000000), libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0),\n        \
         attempt(lambda: open('/scratch/7/x', 'w')), attempt(lambda: open('/dev/null', 'w').write('x')),\n        \
         attempt(lambda: open('/tool/source/0/tool.py', 'a')), attempt(lambda: os.listdir('/'))]",
    );
    for mode in [ExecutionMode::Zygote, ExecutionMode::Spare] {
        let outcome = run_until(&rig, &program, "{}", mode);
        let RunStatus::Ok { value } = &outcome.status else {
            panic!("{outcome:?}");
        };
        let found: serde_json::Value = value.read().unwrap();
        assert_eq!(found[0], "1", "{found}");
        assert_eq!(found[2], 0, "{found}");
        assert_eq!(found[3], 0, "{found}");
        assert_eq!(found[6], "OSError", "{found}");
        assert_eq!(found[7], "ProcessLookupError", "{found}");
        assert_eq!((&found[8], &found[9]), (&(-1).into(), &(-1).into()), "{found}");
        for refused in [10, 12] {
            assert!(
                found[refused] == "PermissionError" || found[refused] == "OSError",
                "{refused}: {found}"
            );
        }
        assert_eq!(found[11], "done", "{found}");
    }
}

#[test]
fn a_module_with_threads_is_never_forked() {
    let rig = Rig::new();
    let program = rig.python(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n\
         calls = []\ndef run():\n    calls.append(1)\n    return [len(calls), threading.active_count()]",
    );
    let first = rig.run(request(&program, "{}"));
    assert_eq!((value(&first), first.mode), ("[1,2]", ExecutionMode::Cold));
    for _ in 0..2 {
        let outcome = run_until(&rig, &program, "{}", ExecutionMode::Oneshot);
        assert_eq!(value(&outcome), "[1,2]");
    }
    // A descriptor that is open after the import would be shared by calls.
    let program = rig.python("held = open('/dev/null')\ndef run(): return held.fileno() > 2");
    let first = rig.run(request(&program, "{}"));
    assert_eq!((value(&first), first.mode), ("true", ExecutionMode::Cold));
    run_until(&rig, &program, "{}", ExecutionMode::Oneshot);
}

#[test]
fn one_process_for_many_calls_is_an_exception_that_is_asked_for_and_allowed() {
    let source = "calls = []\ndef run(fail=False):\n    calls.append(1)\n    print(len(calls))\n    \
                  if fail: raise ValueError(len(calls))\n    return len(calls)";
    let persistent = |rig: &Rig, program: &Arc<PinnedProgram>, arguments: &str| {
        let mut request = request(program, arguments);
        request.preference = ExecutionPreference::Persistent;
        rig.engine.run_blocking(request)
    };
    let rig = Rig::new();
    let program = rig.python(source);
    let error = persistent(&rig, &program, "{}").unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Unavailable, Some(ReasonCode::SandboxUnavailable))
    );

    let rig = Rig::with(|settings| settings.allow_persistent = true);
    let program = rig.python(source);
    for count in 1..=3 {
        let outcome = persistent(&rig, &program, "{}").unwrap();
        assert_eq!(
            (value(&outcome), outcome.mode),
            (count.to_string().as_str(), ExecutionMode::Persistent)
        );
        assert_eq!(outcome.stdout.text, format!("{count}\n"));
        assert_eq!(outcome.unenforced, [Guarantee::CallIsolation]);
    }
    let outcome = persistent(&rig, &program, r#"{"fail":true}"#).unwrap();
    assert!(
        matches!(outcome.status, RunStatus::ToolError { .. }),
        "{outcome:?}"
    );
    assert_eq!(value(&persistent(&rig, &program, "{}").unwrap()), "5");
    // The others are not touched by it.
    let outcome = rig.run(request(&program, "{}"));
    assert_eq!((value(&outcome), outcome.unenforced.is_empty()), ("1", true));
}

#[test]
fn a_late_word_of_one_call_is_not_of_the_next() {
    let rig = Rig::with(|settings| {
        settings.allow_persistent = true;
        settings.required = vec![Guarantee::Net];
    });
    let program = rig.python(
        "import sys, threading, time\nsaid = []\ndef late():\n    time.sleep(0.2)\n    \
         for stream in (sys.stdout, sys.stderr): print('late', file=stream)\n    said.append(1)\n\
         def run(start=False):\n    if start: threading.Thread(target=late).start()\n    return len(said)",
    );
    let call = |arguments: &str| {
        let mut request = request(&program, arguments);
        request.preference = ExecutionPreference::Persistent;
        rig.run(request)
    };
    assert_eq!(value(&call(r#"{"start":true}"#)), "0");
    let until = Instant::now() + LONG;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let outcome = call("{}");
        assert_eq!(
            (outcome.stdout.text.as_str(), outcome.stderr.text.as_str()),
            ("", "")
        );
        // Also where nobody requires it.
        assert_eq!(outcome.unenforced, [Guarantee::CallIsolation]);
        if value(&outcome) == "1" {
            break;
        }
        assert!(Instant::now() < until, "nothing was said");
    }
}

#[test]
fn projects_and_limits_do_not_meet_in_one_process() {
    let rig = Rig::new();
    let program = rig.python("import time\nstamp = time.monotonic_ns()\ndef run(): return stamp");
    let mut stamps = BTreeSet::new();
    let mut note = |request| stamps.insert(value(&rig.run(request)).to_owned());
    assert!(note(request(&program, "{}")));
    assert!(!note(request(&program, "{}")));
    let mut other = request(&program, "{}");
    other.tenant = "other".to_owned().try_into().unwrap();
    assert!(note(other));
    let mut larger = request(&program, "{}");
    larger.limits.processes = Some(33);
    assert!(note(larger));
}

#[test]
fn a_zygote_that_is_killed_or_filled_does_not_break_the_next_call() {
    let rig = Rig::new();
    let program = rig.python(
        "import os\ndef run(what):\n    if what == 'fill':\n        n = 0\n        try:\n            while True:\n                \
         open(str(n), 'w').write('x'); n += 1\n        except OSError: return 'full'\n    \
         if what == 'deep':\n        for _ in range(500):\n            os.mkdir('d'); os.chdir('d')\n        return 'deep'\n    \
         if what == 'locked':\n        os.mkdir('l'); open('l/f', 'w').close(); os.chmod('l', 0); return 'locked'\n    \
         return len(os.listdir('.'))",
    );
    for _ in 0..6 {
        for what in ["fill", "deep", "locked"] {
            let word = if what == "fill" { "full" } else { what };
            let outcome = rig.run(request(&program, &format!(r#"{{"what":"{what}"}}"#)));
            assert_eq!(value(&outcome), format!("\"{word}\""));
        }
        assert_eq!(value(&rig.run(request(&program, r#"{"what":""}"#))), "0");
    }

    // A module that ends its own process, as seen from a call: nothing of it can be reached.
    let hostile = rig.python(
        "import os, threading\ndef run(): return os.getpid()\n\
         if not os.path.exists('/scratch/0/again'):\n    pass\n",
    );
    assert_eq!(value(&rig.run(request(&hostile, "{}"))), "1");
}

#[test]
fn zygotes_are_replaced_and_bounded() {
    let rig = Rig::with(|settings| {
        settings.zygotes = 1;
        settings.zygote_calls = 5;
        settings.spares = 0;
    });
    let stamped = "import time\nstamp = time.monotonic_ns()\ndef run(): return stamp";
    let program = rig.python(stamped);
    let mut stamps = BTreeSet::new();
    for _ in 0..15 {
        stamps.insert(value(&rig.run(request(&program, "{}"))).to_owned());
    }
    assert_eq!(stamps.len(), 3);
    let other = rig.python(&format!("{stamped} # other"));
    for program in [&program, &other, &program] {
        assert!(matches!(
            rig.run(request(program, "{}")).status,
            RunStatus::Ok { .. }
        ));
    }

    let rig = Rig::with(|settings| settings.zygotes = 0);
    let program = rig.python(stamped);
    assert_eq!(rig.run(request(&program, "{}")).mode, ExecutionMode::Cold);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_future_kills_its_run() {
    let rig = Rig::with(|settings| settings.places = 1);
    let program = rig.python("import time\ndef run(seconds):\n    time.sleep(seconds)\n    return seconds");
    for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
        let mut long = request(&program, r#"{"seconds":600}"#);
        long.preference = preference;
        let dropped = tokio::time::timeout(Duration::from_millis(500), rig.engine.run(long)).await;
        assert!(dropped.is_err());
        // Its place is free again: there is only one.
        let outcome = rig
            .engine
            .run(request(&program, r#"{"seconds":0}"#))
            .await
            .unwrap();
        assert_eq!(value(&outcome), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_is_bounded_and_its_time_is_the_callers() {
    let rig = Rig::with(|settings| {
        settings.places = 1;
        settings.queue = 1;
    });
    let program = rig.python("import time\ndef run(): time.sleep(600)");
    let engine = &rig.engine;
    let mut first = request(&program, "{}");
    first.deadline = Deadline::after(Duration::from_secs(3));
    let mut second = request(&program, "{}");
    second.deadline = Deadline::after(Duration::from_millis(700));
    let third = request(&program, "{}");
    let (first, second, third) = tokio::join!(
        engine.run(first),
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            engine.run(second).await
        },
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            engine.run(third).await
        },
    );
    assert!(matches!(
        first.unwrap().status,
        RunStatus::DeadlineExceeded { .. }
    ));
    assert_eq!(
        second.unwrap().status,
        RunStatus::DeadlineExceeded {
            phase: caliber_core::sandbox::Phase::Queue
        }
    );
    assert_eq!(third.unwrap_err().reason(), Some(ReasonCode::SandboxBusy));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callable_is_looked_at_in_a_child() {
    let rig = Rig::new();
    let program =
        rig.python("def run(a: int, *, b='x') -> str:\n    \"\"\"Adds.\n\n    Slowly.\"\"\"\n    return a\n");
    let seen = rig.engine.inspect(&program, Deadline::after(LONG)).await.unwrap();
    assert!(seen.available && !seen.truncated);
    assert_eq!(seen.signature, "run(a: int, *, b='x') -> str");
    assert_eq!(seen.doc, "Adds.\n\nSlowly.");
    assert!(seen.source.starts_with("def run("));

    let broken = rig.python("import nothing_of_that_name");
    let seen = rig.engine.inspect(&broken, Deadline::after(LONG)).await.unwrap();
    assert!(!seen.available && seen.error.unwrap().contains("nothing_of_that_name"));

    let hanging = rig.python("import time\ntime.sleep(600)");
    let error = rig
        .engine
        .inspect(&hanging, Deadline::after(Duration::from_millis(500)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_engine_has_ended_everything_and_takes_nothing() {
    let rig = Rig::new();
    let program = rig.python("import time\ndef run(seconds): time.sleep(seconds)");
    let engine = Arc::clone(&rig.engine);
    let running = {
        let long = request(&program, r#"{"seconds":600}"#);
        tokio::spawn(async move { engine.run(long).await })
    };
    rig.engine
        .run(request(&program, r#"{"seconds":0}"#))
        .await
        .unwrap();
    rig.engine.close(Deadline::after(LONG)).await;
    assert!(running.await.unwrap().is_err());
    let error = rig
        .engine
        .run(request(&program, r#"{"seconds":0}"#))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SandboxUnavailable));
    assert!(
        rig.engine
            .run_blocking(request(&program, r#"{"seconds":0}"#))
            .is_err()
    );
}

#[test]
fn without_namespaces_what_is_left_is_applied_and_said() {
    let layers = Layers {
        namespaces: false,
        proc: false,
        unenforced: vec![Guarantee::Net, Guarantee::TreeKill],
        ..all_layers()
    };
    let rig = Rig::with_layers(layers, |_| {});
    let program = rig.python(
        "import os, socket, time\ndef attempt(f):\n    try: f()\n    except OSError as e: return type(e).__name__\n    return 'done'\n\
         def run():\n    if os.fork() == 0: time.sleep(600)\n    \
         return [attempt(lambda: open('/etc/passwd')), attempt(lambda: open('/tmp/x', 'w')), attempt(socket.socket)]",
    );
    for _ in 0..3 {
        let mut request = request(&program, "{}");
        // Without a namespace of users the kernel counts all processes of the user, those of other tests too.
        request.limits.processes = Some(4096);
        let outcome = rig.run(request);
        assert_eq!(
            value(&outcome),
            r#"["PermissionError","PermissionError","OSError"]"#
        );
        assert_eq!(outcome.mode, ExecutionMode::Cold);
        assert_eq!(outcome.unenforced, [Guarantee::Net, Guarantee::TreeKill]);
    }
}

#[tokio::test]
async fn without_a_queue_a_free_place_is_enough() {
    let rig = Rig::with(|settings| {
        settings.places = 1;
        settings.queue = 0;
    });
    let program = rig.python("def run(): return 1");
    let outcome = rig.engine.run(request(&program, "{}")).await.unwrap();
    assert!(matches!(outcome.status, RunStatus::Ok { .. }), "{outcome:?}");
}
