//! The same tests as an unprivileged user: this binary again, as nobody, in namespaces that go away with it.

use std::process::Command;

/// Where a child of this binary reads that it is the one that was started again.
pub(crate) const AGAIN: &str = "CALIBER_SANDBOX_TEST_AGAIN";

#[test]
fn everything_holds_for_an_unprivileged_user() {
    if !rustix::process::geteuid().is_root() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    // The binary may lie where nobody may look, so a copy is run.
    let folder = tempfile::Builder::new()
        .prefix("caliber-sandbox-nobody")
        .tempdir()
        .unwrap();
    let copy = folder.path().join("it");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    for (path, mode) in [(folder.path(), 0o755), (&copy, 0o755), (&temporary, 0o777)] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let output = Command::new("/usr/bin/setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ])
        .arg(&copy)
        .args([
            "--test-threads=2",
            "spawn::",
            "engine",
            "pin::",
            "probe::",
            "adapter::",
        ])
        .env_clear()
        .env(AGAIN, "1")
        .env("PATH", "/usr/bin:/bin")
        .env("TMPDIR", &temporary)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!text.contains(" 0 passed"), "{text}");
}
