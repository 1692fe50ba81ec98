//! The throw-away world that hostile code runs in: namespaces of its own around the whole test, with a root that nobody
//! can write to. The test binary runs itself again inside.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set inside.
const INSIDE: &str = "CALIBER_TEST_OUTER";
/// A value that stands in the environment of the test and must not be seen by any tool.
const SECRET: &str = "CALIBER_TEST_SECRET";
/// The first process id inside: higher than any in a namespace of a tool, so that none is mistaken for another.
pub(crate) const FIRST_PID: u32 = 5000;
/// How long one test may take.
const LIMIT_SECONDS: &str = "900";

/// Who the test is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Root, as a control plane in a container is.
    Root,
    /// The user 65534, without any right.
    Nobody,
    /// As `Nobody`, where the system refuses what a default Docker engine refuses.
    NobodyInDocker,
    /// Root, where the system refuses what a default Docker engine refuses.
    RootInDocker,
}

/// Runs `body` inside, as `identity`. `name` is the path of the test that calls this, as the test binary knows it.
#[track_caller]
#[expect(clippy::print_stdout, reason = "a test says that it was skipped")]
pub(crate) fn inside(name: &str, identity: Identity, body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    if !rustix::process::geteuid().is_root() {
        let is_required = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(
            !is_required,
            "the attacks need root, to lay out a throw-away world"
        );
        println!("skipped: {name} needs root, to lay out a throw-away world");
        return;
    }
    let (status, output) = run_again(name, identity);
    assert!(
        status && output.contains("test result: ok. 1 passed"),
        "inside the throw-away world:\n{output}"
    );
}

pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// The value that must not be seen.
pub(crate) fn secret() -> String {
    std::env::var(SECRET).unwrap()
}

/// The folder that everything of the test lies in: in memory, for everybody, gone at the end.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os(INSIDE).unwrap())
}

/// The folder with the attacks.
pub(crate) fn tools() -> PathBuf {
    folder().join("tools")
}

/// A program with the set-user-ID bit that belongs to root.
pub(crate) fn set_user_id() -> PathBuf {
    folder().join("packages/id")
}

fn run_again(name: &str, identity: Identity) -> (bool, String) {
    // Two are in the way of each other: each wants both processors.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mount_point = tempfile::tempdir().unwrap();
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/attacks/tools");
    let output = Command::new("timeout")
        .args(["--kill-after=5", LIMIT_SECONDS, "unshare"])
        .args([
            "-m",
            "-p",
            "-f",
            "-n",
            "-i",
            "-u",
            "--kill-child=KILL",
            "--propagation",
            "private",
            "--mount-proc",
        ])
        .args(["sh", "-euc", LAY_OUT, "sh"])
        .arg(mount_point.path())
        .arg(std::env::current_exe().unwrap())
        .arg(tools)
        .arg(match identity {
            Identity::Root => "",
            Identity::Nobody => "setpriv --reuid=65534 --regid=65534 --clear-groups",
            Identity::RootInDocker => "/usr/bin/python3 -I docker.py",
            Identity::NobodyInDocker => {
                "setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -I docker.py"
            }
        })
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("RUST_BACKTRACE", "0")
        .env(SECRET, format!("secret-{}", std::process::id()))
        .env("FIRST_PID", FIRST_PID.to_string())
        .output()
        .unwrap();
    let text = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.success(), text)
}

/// Arguments: the folder, the test binary, the attacks, the words that the binary is run with, its arguments. The shell
/// stays the first process of the namespace and reaps what is orphaned.
const LAY_OUT: &str = r#"
folder=$1 binary=$2 tools=$3 words=$4
shift 4
echo "$FIRST_PID" > /proc/sys/kernel/ns_last_pid
ip link set lo up
ip route add 169.254.169.254/32 dev lo
mount -t tmpfs -o mode=1777,size=3g attacks "$folder"
cp "$binary" "$folder/test"
cp -R "$tools" "$folder/tools"
cp "$folder/tools/docker.py" "$folder/docker.py"
mkdir "$folder/packages"
cp /usr/bin/id "$folder/packages/id"
chmod -R a+rX "$folder"
chmod 4755 "$folder/packages/id"
mount --move "$folder" /tmp
mount -t tmpfs -o mode=1777,size=1g attacks /dev/shm
mount -o remount,bind,ro /
export TMPDIR=/tmp CALIBER_TEST_OUTER=/tmp HOME=/tmp
cd /tmp
status=0
$words /tmp/test "$@" || status=$?
exit "$status"
"#;
