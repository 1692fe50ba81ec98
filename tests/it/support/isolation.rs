//! A process of its own for one test.

use std::future::Future;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::machine::signal_group;

/// Set, to the name of the test, in the process of an isolated test.
const VARIABLE: &str = "CALIBER_TEST_ISOLATED";
/// The longest isolated test. A longer one has failed.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the body of a test in a process of its own, on a runtime of two threads, for at most 120 s.
///
/// Memory, descriptors and children of that process are the test's alone, also when other tests run beside it, and
/// a crash is a failure of this one test. Called as the one statement of a `#[test]` function, whose name it takes
/// from the type of the closure that it is given.
pub(crate) fn isolated<F, Fut>(body: F)
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = ()>,
{
    let name = test_name(std::any::type_name::<F>());
    if std::env::var(VARIABLE).is_ok_and(|isolated| isolated == name) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.expect("a runtime starts").block_on(body());
        return;
    }
    let binary = std::env::current_exe().expect("the test knows its own program");
    let mut command = Command::new(binary);
    command
        .args([&name, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, &name);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut process = command.spawn().expect("the test starts its own program");
    let output = [collect(process.stdout.take()), collect(process.stderr.take())];
    let ended = wait(&mut process);
    // What the test left in its group would keep its output open.
    signal_group(process.id(), "KILL");
    let [stdout, stderr] = output.map(|thread| thread.join().unwrap_or_default());
    match ended {
        Some(status) if status.success() => {
            // A name that matches nothing would pass as well.
            assert!(
                stdout.contains("1 passed"),
                "the isolated test {name} did not run:\n{stdout}\n{stderr}"
            );
        }
        Some(status) => panic!("the isolated test {name} failed with {status}:\n{stdout}\n{stderr}"),
        None => panic!("the isolated test {name} was ended after {LIMIT:?}:\n{stdout}\n{stderr}"),
    }
}

/// Whether this process runs one isolated test.
pub(super) fn is_isolated() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// `it::hostile::json::a_test::{{closure}}` is the test `hostile::json::a_test`.
fn test_name(type_name: &str) -> String {
    let (_, path) = type_name.split_once("::").expect("the body belongs to a test");
    path.trim_end_matches("::{{closure}}").to_owned()
}

fn collect(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // Bounded: a test that talks without end is cut, and blocks then until its time is over.
            let _ = stream.take(16 << 20).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(process: &mut Child) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = process.try_wait().expect("the test waits for its own child") {
            return Some(status);
        }
        if Instant::now() >= end {
            let _ = process.kill();
            let _ = process.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
