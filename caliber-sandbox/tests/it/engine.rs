//! Every end that a call can have, in new interpreters and in forked ones.

use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    ExecutionMode, ExecutionPreference, Exit, NativeProtocol, Phase, Resource, RunOutcome, RunStatus,
};
use caliber_core::secret::SecretText;

use crate::support::{LONG, Rig, request, secret, value};

/// Runs a module in a new interpreter and in one that forks; both must end alike.
fn both_ways(source: &str, arguments: &str, check: impl Fn(&RunOutcome)) {
    let rig = Rig::new();
    let program = rig.python(source);
    for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
        let mut request = request(&program, arguments);
        request.preference = preference;
        check(&rig.run(request));
    }
}

fn invalid(outcome: &RunOutcome) -> &str {
    match &outcome.status {
        RunStatus::ResultInvalid { problem } => problem,
        other => panic!("{other:?}\n{}", outcome.stderr.text),
    }
}

fn error_type(outcome: &RunOutcome) -> &str {
    match &outcome.status {
        RunStatus::ToolError { error_type, .. } => error_type,
        other => panic!("{other:?}\n{}", outcome.stderr.text),
    }
}

#[test]
fn a_value_comes_back_with_what_was_written() {
    both_ways(
        "import sys\ndef run(a, b=2):\n    print('out', a)\n    print('err', file=sys.stderr)\n    return {'sum': a + b}\n",
        r#"{"a": 40}"#,
        |outcome| {
            assert_eq!(value(outcome), r#"{"sum":42}"#);
            assert_eq!(outcome.stdout.text, "out 40\n");
            assert_eq!(outcome.stderr.text, "err\n");
            assert!(outcome.times.start_us > 0 && outcome.times.run_us > 0);
        },
    );
}

#[test]
fn the_way_of_calling_follows_the_signature() {
    for (source, arguments, expected) in [
        ("def run(a, *, b): return [a, b]", r#"{"a":1,"b":2}"#, "[1,2]"),
        ("def run(**all): return all", r#"{"a":1}"#, r#"{"a":1}"#),
        ("def run(payload): return payload", r#"{"a":1}"#, r#"{"a":1}"#),
        ("def run(payload): return payload", r#"{"payload":1}"#, "1"),
        (
            "def run(payload, /): return payload",
            r#"{"payload":1}"#,
            r#"{"payload":1}"#,
        ),
        ("def run(): return 'nothing'", "{}", r#""nothing""#),
        ("def run(*all): return all", r#"{"a":1}"#, r#"[{"a":1}]"#),
        (
            "class Tool:\n    def __call__(self, a): return a\nrun = Tool()",
            r#"{"a":1}"#,
            "1",
        ),
        (
            "class Tool:\n    def go(self, a): return a\nrun = Tool().go",
            r#"{"a":1}"#,
            "1",
        ),
        (
            "import functools\ndef f(a, b): return [a, b]\nrun = functools.partial(f, b=2)",
            r#"{"a":1}"#,
            "[1,2]",
        ),
        (
            "import functools\ndef w(f):\n    @functools.wraps(f)\n    def g(*a, **k): return f(*a, **k)\n    return g\n@w\ndef run(a): return a",
            r#"{"x":1}"#,
            r#"{"x":1}"#,
        ),
        (
            "async def run(a):\n    import asyncio\n    await asyncio.sleep(0)\n    return a",
            r#"{"a":1}"#,
            "1",
        ),
    ] {
        both_ways(source, arguments, |outcome| {
            assert_eq!(value(outcome), expected, "{source}")
        });
    }
    both_ways(
        "calls = []\ndef run(a, b):\n    calls.append(1)\n    raise TypeError(len(calls))",
        r#"{"a":1,"b":2}"#,
        |outcome| {
            // A `TypeError` of the tool is not taken for a wrong way of calling: there was one call.
            assert!(
                matches!(&outcome.status, RunStatus::ToolError { message, .. } if message == "1"),
                "{outcome:?}"
            );
        },
    );
    // A mistyped name is a mistake, and no other way of calling.
    for (source, arguments, told) in [
        ("def run(a, b): return 1", r#"{"a":1}"#, "it needs b"),
        (
            "def run(week, region='eu'): return 1",
            r#"{"wek":1}"#,
            "it needs week; it has no parameter wek",
        ),
        (
            "def run(a, *, b=1): return 1",
            r#"{"a":1,"c":2}"#,
            "it has no parameter c",
        ),
        (
            "def run(week: int): return 1",
            r#"{"wek":1}"#,
            "it needs week; it has no parameter wek",
        ),
        ("def run(): return 1", r#"{"a":1}"#, "it has no parameter a"),
    ] {
        both_ways(source, arguments, |outcome| {
            assert!(
                matches!(&outcome.status, RunStatus::ToolError { message, .. } if message.ends_with(told)),
                "{source}: {outcome:?}"
            );
        });
    }
}

#[test]
fn values_that_are_no_plain_json_are_refused() {
    for (expression, word) in [
        ("float('nan')", "JSON"),
        ("[float('inf')]", "JSON"),
        ("2**64", "64 bits"),
        ("10**4000", "64 bits"),
        ("10**6000", "ValueError"),
        ("nested(900)", "depth"),
        ("nested(100000)", "RecursionError"),
        ("'\\ud800'", "utf16"),
        ("{'\\udfff': 1}", "utf16"),
        ("{1: 1, '1': 2}", "duplicate_key"),
        ("b'bytes'", "TypeError"),
        ("{(1, 2): 3}", "TypeError"),
        ("{1, 2}", "TypeError"),
        ("circle()", "ValueError"),
        ("run", "TypeError"),
    ] {
        let source = format!(
            "def nested(depth):\n    value = []\n    for _ in range(depth): value = [value]\n    return value\n\
             def circle():\n    value = []\n    value.append(value)\n    return value\n\
             def run():\n    return {expression}\n"
        );
        both_ways(&source, "{}", |outcome| {
            assert!(
                invalid(outcome).contains(word),
                "{expression}: {:?}",
                outcome.status
            );
        });
    }
    both_ways(
        "def run(): return [2**64 - 1, -2**63, 1e308, True, None, '\\U0001f600', {'a': {}}]",
        "{}",
        |outcome| {
            assert_eq!(
                value(outcome),
                r#"[18446744073709551615,-9223372036854775808,1e+308,true,null,"\ud83d\ude00",{"a":{}}]"#
            );
        },
    );
}

#[test]
fn a_result_beyond_the_limit_is_refused_by_its_length() {
    both_ways("def run(): return 'x' * (50 << 20)", "{}", |outcome| {
        assert!(
            matches!(outcome.status, RunStatus::ResultTooLarge { limit } if limit == 16 << 20),
            "{:?}",
            outcome.status
        );
    });
    let rig = Rig::new();
    let program = rig.python("def run(length): return 'x' * length");
    for (length, fits) in [(98, true), (99, false)] {
        let mut request = request(&program, &format!(r#"{{"length":{length}}}"#));
        request.limits.result_bytes = Some(100);
        let outcome = rig.run(request);
        assert_eq!(
            matches!(outcome.status, RunStatus::Ok { .. }),
            fits,
            "{:?}",
            outcome.status
        );
    }
}

#[test]
fn a_result_of_too_many_values_is_refused() {
    both_ways(
        "def run(count): return [[]] * count",
        r#"{"count":1000000}"#,
        |outcome| {
            assert!(invalid(outcome).contains("nodes"), "{outcome:?}");
        },
    );
}

#[test]
fn everything_raised_is_an_error_of_the_tool() {
    for (statement, expected) in [
        ("raise ValueError('no')", "ValueError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise type('Mine', (BaseException,), {})()", "Mine"),
        ("1 / 0", "ZeroDivisionError"),
        ("return bytearray(1 << 40)", "MemoryError"),
    ] {
        both_ways(&format!("def run():\n    {statement}\n"), "{}", |outcome| {
            assert_eq!(error_type(outcome), expected);
            assert!(outcome.stderr.text.contains(expected), "{}", outcome.stderr.text);
        });
    }
    both_ways(
        "class Bad(Exception):\n    def __str__(self): raise SystemExit(5)\ndef run(): raise Bad()",
        "{}",
        |outcome| assert_eq!(error_type(outcome), "Bad"),
    );
    both_ways(
        "class Bad(dict):\n    def items(self): raise SystemExit(5)\ndef run(): return Bad(a=1)",
        "{}",
        |outcome| assert_eq!(error_type(outcome), "SystemExit"),
    );
    both_ways("def run(): raise ValueError('x' * (30 << 20))", "{}", |outcome| {
        let RunStatus::ToolError { message, .. } = &outcome.status else {
            panic!("{:?}", outcome.status);
        };
        assert!((1000..9000).contains(&message.len()), "{}", message.len());
    });
}

#[test]
fn a_module_that_cannot_be_imported_is_an_error_of_the_tool() {
    for (source, expected) in [
        ("import there_is_no_such_module", "ModuleNotFoundError"),
        ("raise ValueError('at import')", "ValueError"),
        ("def other(): pass", "AttributeError"),
        ("run = 3", "TypeError"),
        ("def run(:", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
    ] {
        both_ways(source, "{}", |outcome| {
            assert_eq!(error_type(outcome), expected, "{source}")
        });
    }
}

#[test]
fn a_callable_may_be_a_part_of_something() {
    let rig = Rig::new();
    let source = "class Tool:\n    class Inner:\n        @staticmethod\n        def go(a): return a + 1\n";
    let program = rig.python_named("tool", "Tool.Inner.go", source);
    for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
        let mut request = request(&program, r#"{"a":1}"#);
        request.preference = preference;
        assert_eq!(value(&rig.run(request)), "2");
    }
    let missing = rig.python_named("tool", "Tool.go", source);
    assert_eq!(error_type(&rig.run(request(&missing, "{}"))), "AttributeError");
}

#[test]
fn a_module_of_the_interpreter_is_not_taken_for_that_of_the_tool() {
    let rig = Rig::new();
    for (module, callable) in [("json", "dumps"), ("platform", "system"), ("posix", "getpid")] {
        let program = rig.python_named(module, callable, &format!("def {callable}(*all): return 'ours'"));
        for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
            let mut request = request(&program, "{}");
            request.preference = preference;
            let outcome = rig.run(request);
            assert_eq!(error_type(&outcome), "ImportError", "{module}: {outcome:?}");
        }
    }
    // One that the interpreter does not have loaded, and that is the tool's own.
    let program = rig.python_named("jsonish", "dumps", "def dumps(): return 'ours'");
    assert_eq!(value(&rig.run(request(&program, "{}"))), r#""ours""#);
}

#[test]
fn a_process_that_ends_without_a_result_is_no_success() {
    for (statement, expected) in [
        ("os._exit(0)", Exit::Code(0)),
        ("os._exit(77)", Exit::Code(77)),
        ("os.kill(os.getpid(), 9); ctypes.string_at(0)", Exit::Signal(11)),
        ("os.closerange(0, 64); os._exit(3)", Exit::Code(3)),
    ] {
        both_ways(
            &format!("import os, ctypes\ndef run():\n    {statement}\n"),
            "{}",
            |outcome| {
                let expected = RunStatus::NoResult {
                    phase: Phase::Run,
                    exit: expected,
                };
                assert_eq!(outcome.status, expected, "{statement}\n{}", outcome.stderr.text);
            },
        );
    }
    both_ways("import os\nos._exit(0)", "{}", |outcome| {
        let expected = RunStatus::NoResult {
            phase: Phase::Import,
            exit: Exit::Code(0),
        };
        assert_eq!(outcome.status, expected);
    });
    // Closed output does not matter to a result.
    both_ways(
        "import os\ndef run():\n    os.close(1); os.close(2)\n    return 1",
        "{}",
        |outcome| {
            assert_eq!(value(outcome), "1");
        },
    );
}

#[test]
fn frames_that_are_not_in_order_are_a_violation() {
    let send = "import os, sys, struct\ndef frame(kind, nonce, data):\n    return struct.pack('<I', 17 + len(data)) + bytes([kind]) + nonce + data\n";
    for (statement, expected) in [
        // A nonce that was guessed.
        ("os.write(3, frame(3, b'x' * 16, b'1'))", "another call"),
        // No frame at all.
        ("os.write(3, b'garbage garbage garbage garbage')", "longer"),
        ("os.write(3, struct.pack('<I', 3) + b'abc')", "shorter"),
        (
            "os.write(3, struct.pack('<I', 17) + b'\\x63' + b'x' * 16)",
            "no known kind",
        ),
    ] {
        both_ways(
            &format!("{send}def run():\n    {statement}\n    import time; time.sleep(30)"),
            "{}",
            |outcome| match &outcome.status {
                RunStatus::ProtocolViolation { problem } => assert!(problem.contains(expected), "{problem}"),
                RunStatus::ResultTooLarge { .. } => assert_eq!(expected, "longer"),
                other => panic!("{statement}: {other:?}"),
            },
        );
    }
    // A length of four gigabytes is refused as it stands.
    both_ways(
        &format!(
            "{send}def run():\n    os.write(3, b'\\xff\\xff\\xff\\xff')\n    import time; time.sleep(30)"
        ),
        "{}",
        |outcome| {
            assert!(
                matches!(outcome.status, RunStatus::ResultTooLarge { .. }),
                "{:?}",
                outcome.status
            );
        },
    );
    // A forged frame with the right nonce is no answer when the real one follows.
    let forged = format!(
        "{send}def run():\n    f = sys._getframe()\n    while 'nonce' not in f.f_locals: f = f.f_back\n    \
         os.write(3, frame(3, f.f_locals['nonce'], b'\"forged\"'))\n    return 'real'"
    );
    both_ways(&forged, "{}", |outcome| {
        assert!(
            matches!(&outcome.status, RunStatus::ProtocolViolation { problem } if problem.contains("after")),
            "{:?}",
            outcome.status
        );
    });
    // A value on standard output is output.
    both_ways(
        "def run():\n    print('{\"value\": 1}')\n    return 2",
        "{}",
        |outcome| {
            assert_eq!(value(outcome), "2");
        },
    );
}

#[test]
fn output_is_bounded_and_counted() {
    both_ways(
        "import sys\ndef run():\n    for _ in range(2000): sys.stdout.write('x' * 10000)\n    sys.stdout.write('end')\n    return 1",
        "{}",
        |outcome| {
            assert_eq!(value(outcome), "1");
            assert_eq!(outcome.stdout.total_bytes, 20_000_003);
            assert!(outcome.stdout.truncated && outcome.stdout.text.ends_with("end"));
            assert!(
                outcome.stdout.text.len() < 70_000,
                "{}",
                outcome.stdout.text.len()
            );
        },
    );
}

#[test]
fn secrets_reach_their_call_and_nothing_else() {
    let rig = Rig::new();
    let program = rig.python(
        "import caliber_secrets, sys\ndef run():\n    names = caliber_secrets.names()\n    \
         for name in names: print(caliber_secrets.get(name)); print(caliber_secrets.get(name), file=sys.stderr)\n    return names",
    );
    let mut with = request(&program, "{}");
    with.secrets = vec![secret("TOKEN", "hunter2-hunter2"), secret("OTHER", "swordfish")];
    let outcome = rig.run(with);
    assert_eq!(value(&outcome), r#"["OTHER","TOKEN"]"#);
    assert_eq!(outcome.stdout.text, "[secret]\n[secret]\n");
    assert_eq!(outcome.stderr.text, "[secret]\n[secret]\n");
    for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
        let mut without = request(&program, "{}");
        without.preference = preference;
        assert_eq!(value(&rig.run(without)), "[]");
    }
    let failing =
        rig.python("import caliber_secrets\ndef run(): raise ValueError(caliber_secrets.get('TOKEN'))");
    let mut with = request(&failing, "{}");
    with.secrets = vec![("TOKEN".into(), SecretText::new("hunter2-hunter2"))];
    let outcome = rig.run(with);
    assert!(!format!("{outcome:?}").contains("hunter2"), "{outcome:?}");
    // Nor as the name of what was raised, nor where a long text is cut.
    for before in [0, 190, 4090, 8190] {
        let source = format!(
            "import caliber_secrets\ndef run():\n    text = {before} * 'x' + caliber_secrets.get('TOKEN')\n    \
             raise type(text, (Exception,), {{}})(text) from None"
        );
        let mut with = request(&rig.python(&source), "{}");
        with.secrets = vec![secret("TOKEN", "hunter2-hunter2")];
        let outcome = rig.run(with);
        let RunStatus::ToolError { error_type, message } = &outcome.status else {
            panic!("{outcome:?}");
        };
        assert!(
            !error_type.contains("hun") && !message.contains("hun"),
            "{outcome:?}"
        );
    }
}

#[test]
fn deadlines_name_what_was_being_done() {
    let rig = Rig::new();
    for (source, phase) in [
        ("import time\ndef run(): time.sleep(60)", Phase::Run),
        ("def run():\n    while True: pass", Phase::Run),
        ("def run(): return sum(range(10**13))", Phase::Run),
        (
            "import signal, os\ndef run():\n    for s in set(range(1, 64)) - {9, 19, 32, 33}: signal.signal(s, signal.SIG_IGN)\n    os.kill(os.getpid(), 19)\n    while True: pass",
            Phase::Run,
        ),
        ("import time\ntime.sleep(60)\ndef run(): pass", Phase::Import),
        ("while True: pass", Phase::Import),
    ] {
        let program = rig.python(source);
        for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
            let mut request = request(&program, "{}");
            request.preference = preference;
            request.deadline = Deadline::after(Duration::from_millis(600));
            let begun = Instant::now();
            let outcome = rig.run(request);
            assert_eq!(outcome.status, RunStatus::DeadlineExceeded { phase }, "{source}");
            let took = begun.elapsed();
            assert!(took >= Duration::from_millis(590), "{took:?}");
            assert!(
                took < Duration::from_millis(600) + Duration::from_secs(2),
                "{took:?}"
            );
        }
    }
    let program = rig.python("def run(): return 1");
    let mut late = request(&program, "{}");
    late.deadline = Deadline::after(Duration::ZERO);
    assert_eq!(
        rig.run(late).status,
        RunStatus::DeadlineExceeded { phase: Phase::Queue }
    );
}

#[test]
fn what_the_settings_allow_ends_before_what_a_caller_allows() {
    let rig = Rig::with(|settings| {
        settings.timeout = Duration::from_millis(400);
        settings.startup_grace = Duration::ZERO;
    });
    let program = rig.python("import time\ndef run(): time.sleep(600)");
    for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
        let mut request = request(&program, "{}");
        request.preference = preference;
        request.startup_grace = LONG;
        let start = Instant::now();
        let outcome = rig.run(request);
        assert!(
            matches!(outcome.status, RunStatus::DeadlineExceeded { .. }),
            "{outcome:?}"
        );
        assert!(start.elapsed() < LONG / 2, "{outcome:?}");
    }
}

#[test]
fn start_up_has_a_clock_of_its_own_when_it_is_given_one() {
    let rig = Rig::new();
    let program = rig.python("import time\ntime.sleep(0.7)\ndef run(): return 1");
    let mut strict = request(&program, "{}");
    strict.preference = ExecutionPreference::Cold;
    strict.deadline = Deadline::after(Duration::from_millis(500));
    assert_eq!(
        rig.run(strict.clone()).status,
        RunStatus::DeadlineExceeded { phase: Phase::Import }
    );
    let mut graceful = strict;
    graceful.startup_grace = LONG;
    graceful.deadline = Deadline::after(Duration::from_millis(500));
    assert_eq!(value(&rig.run(graceful)), "1");

    // The clock of the run starts when start-up has ended, and no later than the grace allows.
    let program = rig.python("import time\ntime.sleep(60)\ndef run(): return 1");
    let mut hanging = request(&program, "{}");
    hanging.preference = ExecutionPreference::Cold;
    hanging.startup_grace = Duration::from_millis(300);
    hanging.deadline = Deadline::after(Duration::from_millis(300));
    let begun = Instant::now();
    assert_eq!(
        rig.run(hanging).status,
        RunStatus::DeadlineExceeded { phase: Phase::Import }
    );
    assert!(begun.elapsed() >= Duration::from_millis(590));

    let program = rig.python("import time\ndef run(): time.sleep(60)");
    let mut short = request(&program, "{}");
    short.limits.timeout_ms = Some(200);
    assert_eq!(
        rig.run(short).status,
        RunStatus::DeadlineExceeded { phase: Phase::Run }
    );
}

#[test]
fn what_a_tool_leaves_running_ends_with_its_call() {
    let source = "import os, threading, time, atexit\n\
        def run():\n    atexit.register(time.sleep, 60)\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    \
        if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            time.sleep(60)\n        os._exit(0)\n    return 'left'";
    let begun = Instant::now();
    both_ways(source, "{}", |outcome| assert_eq!(value(outcome), r#""left""#));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_tool_meets_its_limits() {
    both_ways(
        "import os\ndef run():\n    made = []\n    try:\n        for _ in range(100):\n            pid = os.fork()\n            if pid == 0:\n                import time; time.sleep(60)\n            made.append(pid)\n    except OSError: pass\n    return len(made)",
        "{}",
        |outcome| {
            let count: u32 = value(outcome).parse().unwrap();
            assert!((10..=32).contains(&count), "{count}");
        },
    );
    both_ways(
        "import os\ndef run():\n    data = b'x' * (1 << 20)\n    written = 0\n    try:\n        for n in range(200):\n            with open(f'f{n}', 'wb') as f: written += f.write(data)\n    except OSError as e: return [written >> 20, e.errno]",
        "{}",
        |outcome| {
            let RunStatus::Ok { value } = &outcome.status else {
                panic!("{outcome:?}")
            };
            let (mib, errno): (u32, i32) = value.read().unwrap();
            assert!(
                (50..=64).contains(&mib) && errno == libc_enospc(),
                "{mib} {errno}"
            );
        },
    );
    both_ways(
        "def run():\n    try: open('/etc/passwd')\n    except OSError as e: return type(e).__name__",
        "{}",
        |outcome| {
            assert_eq!(value(outcome), r#""FileNotFoundError""#);
        },
    );
    both_ways(
        "import socket\ndef run():\n    try: socket.socket()\n    except OSError as e: return e.errno",
        "{}",
        |outcome| {
            assert_eq!(value(outcome), "38");
        },
    );
}

fn libc_enospc() -> i32 {
    rustix::io::Errno::NOSPC.raw_os_error()
}

#[test]
fn processor_time_is_a_limit() {
    if !rustix::process::geteuid().is_root() {
        // Who used it is told by a control group.
        return;
    }
    let rig = Rig::new();
    let outcome = rig.cold(
        "import resource\ndef run():\n    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n    while True: pass",
        "{}",
    );
    // A limit that the tool made lower by itself is not ours.
    assert!(
        matches!(
            outcome.status,
            RunStatus::NoResult {
                phase: Phase::Run,
                exit: Exit::Signal(_)
            }
        ),
        "{:?}",
        outcome.status
    );
}

#[test]
fn memory_of_all_processes_together_is_a_limit() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let source = "import os, time\ndef run():\n    for _ in range(6):\n        if os.fork() == 0:\n            data = bytearray(100 << 20)\n            for at in range(0, len(data), 4096): data[at] = 1\n            time.sleep(30)\n    \
        data = bytearray(150 << 20)\n    for at in range(0, len(data), 4096): data[at] = 1\n    time.sleep(30)\n    return 1";
    let rig = Rig::new();
    let program = rig.python(source);
    for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
        let mut request = request(&program, "{}");
        request.preference = preference;
        request.deadline = Deadline::after(Duration::from_secs(20));
        let outcome = rig.run(request);
        // The kernel chooses which of the processes ends; it may be one of the small ones again and again.
        let is_memory = outcome.status
            == RunStatus::ResourceLimit {
                resource: Resource::Memory,
            };
        assert!(
            is_memory
                || outcome
                    .usage
                    .peak_memory_bytes
                    .is_some_and(|peak| peak <= 257 << 20),
            "{outcome:?}"
        );
    }
}

#[test]
fn native_programs_speak_json_or_frames() {
    let rig = Rig::new();
    let cat = rig.native("/bin/cat", &[], NativeProtocol::Json);
    let outcome = rig.run(request(&cat, r#"{"a":[1,2]}"#));
    assert_eq!(value(&outcome), r#"{"a":[1,2]}"#);
    assert_eq!(outcome.mode, ExecutionMode::Native);
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(3 << 20));
    assert_eq!(value(&rig.run(request(&cat, &large))), large);

    let shell = |script: &str, protocol| rig.native("/bin/sh", &["-c", script], protocol);
    let failing = shell("echo no >&2; exit 3", NativeProtocol::Json);
    let outcome = rig.run(request(&failing, "{}"));
    assert_eq!(
        outcome.status,
        RunStatus::NoResult {
            phase: Phase::Run,
            exit: Exit::Code(3)
        }
    );
    assert_eq!(outcome.stderr.text, "no\n");
    let talking = shell("echo hello", NativeProtocol::Json);
    assert!(matches!(
        rig.run(request(&talking, "{}")).status,
        RunStatus::ResultInvalid { .. }
    ));
    let endless = shell(
        "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
        NativeProtocol::Json,
    );
    let mut small = request(&endless, "{}");
    small.limits.result_bytes = Some(1000);
    assert_eq!(rig.run(small).status, RunStatus::ResultTooLarge { limit: 1000 });
    let secretive = shell(
        "printf '\"%s\"' \"$CALIBER_SECRET_TOKEN\" >&2; echo 1",
        NativeProtocol::Json,
    );
    let mut with = request(&secretive, "{}");
    with.secrets = vec![secret("TOKEN", "hunter2-hunter2")];
    assert_eq!(rig.run(with).stderr.text, "\"[secret]\"");
    let framed = shell("export -p >&2", NativeProtocol::Framed);
    let mut with = request(&framed, "{}");
    with.secrets = vec![secret("TOKEN", "hunter2-hunter2")];
    let environment = rig.run(with).stderr.text;
    assert!(
        environment.contains("TMPDIR") && !environment.contains("CALIBER_SECRET"),
        "{environment}"
    );
    let silent = shell("exit 0", NativeProtocol::Framed);
    assert_eq!(
        rig.run(request(&silent, "{}")).status,
        RunStatus::NoResult {
            phase: Phase::Run,
            exit: Exit::Code(0)
        }
    );
}

#[test]
fn a_copy_that_is_gone_is_said_to_be_gone() {
    let rig = Rig::new();
    let program = rig.python("def run(): return 1");
    let copy = caliber_sandbox::snapshot::folder(&rig.engine.settings().snapshot_folder, &program.source);
    std::fs::rename(&copy, copy.with_extension("away")).unwrap();
    for preference in [ExecutionPreference::Cold, ExecutionPreference::Isolated] {
        let mut request = request(&program, "{}");
        request.preference = preference;
        let error = rig.engine.run_blocking(request).unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::SourceChanged), "{error}");
    }
}
