//! What a child starts with, and what cannot be started.

use super::*;

#[tokio::test]
async fn a_child_has_exactly_the_environment_that_was_built_for_it() {
    let bench = bench(|_| ());
    // `cargo test` has given this process many variables; none may arrive, and no loader variable at all.
    assert!(std::env::vars().count() > 5);
    let env = [("TOKEN", "one\ntwo"), ("PATH", "/bin:/usr/bin")];
    let mut process = bench
        .launcher
        .launch(launch("/usr/bin/env", vec!["-0".into()], &env))
        .await
        .unwrap();
    let printed = read(&mut process.stdout).await;
    let found: BTreeMap<_, _> = printed
        .trim_end_matches('\0')
        .split('\0')
        .map(|entry| entry.split_once('=').unwrap())
        .collect();
    let keys: Vec<_> = found.keys().copied().collect();
    assert_eq!(keys, ["CALIBER_CHILD", "HOME", "PATH", "PWD", "TMPDIR", "TOKEN"]);
    assert_eq!(found["TOKEN"], "one\ntwo");
    assert_eq!(found["PATH"], "/bin:/usr/bin");
    for key in ["HOME", "TMPDIR", "PWD"] {
        assert!(Path::new(found[key]).starts_with(bench.directory.path()), "{key}");
    }
    process.handle.terminate().await;
}

#[tokio::test]
async fn a_launch_may_say_where_home_is() {
    let bench = bench(|_| ());
    let env = [("HOME", "/tmp"), ("TMPDIR", "/tmp")];
    let process = bench
        .launcher
        .launch(launch("/usr/bin/env", vec![], &env))
        .await
        .unwrap();
    let printed = read(process.stdout).await;
    assert!(
        printed.contains("HOME=/tmp\n") && printed.contains("TMPDIR=/tmp\n"),
        "{printed}"
    );
}

#[tokio::test]
async fn the_working_directory_is_private_and_goes_with_the_child() {
    let bench = bench(|_| ());
    let script = "pwd; umask; mkdir -p a/b; echo x > a/b/c; stat -c %a .; cat";
    let mut process = bench.shell(script, &[]).await;
    let directory = first_line(&mut process).await;
    assert_eq!(first_line(&mut process).await, mask_of_children(&bench));
    assert_eq!(first_line(&mut process).await, "700");
    assert!(Path::new(&directory).starts_with(bench.directory.path()));
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let mut other = bench.shell("pwd; cat", &[]).await;
    assert_ne!(first_line(&mut other).await, directory, "each child has its own");
    process.handle.terminate().await;
    assert!(!Path::new(&directory).exists());
    assert_eq!(bench.private_directories(), 1);
    other.handle.terminate().await;
    assert_eq!(bench.private_directories(), 0);
    let base = bench.directory;
    drop(bench.launcher);
    within(
        Duration::from_secs(10),
        "the launcher's directory is removed",
        || std::fs::read_dir(base.path()).unwrap().count() == 0,
    );
}

#[tokio::test]
async fn streams_carry_everything_and_the_end_is_told() {
    let bench = bench(|_| ());
    let script = "cat; i=0; while [ $i -lt 5000 ]; do echo 'this goes to standard error' >&2; i=$((i+1)); done; exit 7";
    let mut process = bench.shell(script, &[]).await;
    let (mut stdin, mut stdout, mut stderr) = (process.stdin, process.stdout, process.stderr);
    let sent = "天気 \u{2028} line\n".repeat(20_000);
    let writing = async {
        stdin.write_all(sent.as_bytes()).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let ((), received, complaints) = tokio::join!(writing, read(&mut stdout), read(&mut stderr));
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    assert_eq!(complaints, "this goes to standard error\n".repeat(5_000));
    assert_eq!(process.handle.wait().await, "exit status: 7");
    assert_eq!(
        process.handle.wait().await,
        "exit status: 7",
        "told as often as asked"
    );
}

#[tokio::test]
async fn a_child_that_is_killed_says_so() {
    let bench = bench(|_| ());
    let mut process = bench.shell("kill -9 $$", &[]).await;
    assert_eq!(process.handle.wait().await, "killed by signal 9");
}

#[tokio::test]
async fn the_number_of_children_is_bounded() {
    let bench = bench(|settings| settings.children = 2);
    let mut one = bench.shell("cat", &[]).await;
    let _two = bench.shell("cat", &[]).await;
    let error = bench.launcher.launch(shell("cat", &[])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("limit"), "{error}");
    one.handle.terminate().await;
    let _three = bench.shell("cat", &[]).await;
    // A failed start gives its place back.
    let bench = self::bench(|settings| settings.children = 1);
    for _ in 0..3 {
        let error = bench
            .launcher
            .launch(launch("/nowhere", vec![], &[]))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream);
    }
}

#[tokio::test]
async fn what_is_no_program_is_an_error_at_once() {
    let bench = bench(|_| ());
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8], mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let trace = folder.path().join("trace");
    let touch = format!("touch {}\n", trace.display());
    let mut foreign = std::fs::read("/bin/sh").unwrap();
    foreign[18] ^= 0xff;
    let started = Instant::now();
    for path in [
        "/nowhere/at/all".to_owned(),
        "/tmp".to_owned(),
        "sh".to_owned(),
        file("plain", touch.as_bytes(), 0o644),
        // A shell would run this one; nobody asked for a shell.
        file("no-interpreter", touch.as_bytes(), 0o755),
        file("empty", b"", 0o755),
        file("foreign", &foreign, 0o755),
    ] {
        let error = bench
            .launcher
            .launch(launch(&path, vec![], &[]))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream, "{path}");
        assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed), "{path}");
        assert!(error.message().contains(&path), "{error}");
    }
    let script = file("script", format!("#!/bin/sh\n{touch}").as_bytes(), 0o755);
    assert!(!trace.exists());
    assert!(started.elapsed() < Duration::from_secs(2));
    let mut process = bench
        .launcher
        .launch(launch(&script, vec![], &[("PATH", "/usr/bin:/bin")]))
        .await
        .unwrap();
    assert_eq!(process.handle.wait().await, "exit status: 0");
    assert!(trace.exists(), "a script that names its interpreter runs");
}

#[tokio::test]
async fn a_missing_interpreter_ends_at_once_and_is_complained_about() {
    let bench = bench(|_| ());
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/nowhere/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let started = Instant::now();
    match bench
        .launcher
        .launch(launch(script.to_str().unwrap(), vec![], &[]))
        .await
    {
        // Without a wrapper the start itself fails.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Upstream),
        Ok(mut process) => {
            let status = process.handle.wait().await;
            assert!(
                status.starts_with("exit status: ") && status != "exit status: 0",
                "{status}"
            );
            let complaint = read(process.stderr).await;
            assert!(complaint.contains("No such file"), "{complaint}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn secrets_show_in_no_error_and_no_debug_text() {
    const CANARY: &str = "canary-93b1";
    let bench = bench(|_| ());
    let env = [("TOKEN", CANARY), ("BAD", "canary-93b1\0x")];
    let wrong = launch("/bin/sh", vec!["-c".into(), CANARY.into()], &env);
    assert!(!format!("{wrong:?}").contains(CANARY));
    let error = bench.launcher.launch(wrong).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    for key in ["A=B", "", "1A", "A B"] {
        let error = bench
            .launcher
            .launch(launch("/usr/bin/env", vec![], &[(key, CANARY)]))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{key}");
        assert!(!format!("{error} {error:?}").contains(CANARY));
    }
    let process = bench
        .launcher
        .launch(launch("/usr/bin/env", vec![], &[("TOKEN", CANARY)]))
        .await
        .unwrap();
    let shown = format!(
        "{process:?} {:?} {:?}",
        bench.launcher,
        bench.launcher.containment()
    );
    assert!(!shown.contains(CANARY));
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_any_more_leaves_nothing() {
    let bench = bench(|settings| settings.children = 8);
    let word = word();
    for _ in 0..8 {
        let mut launching = Box::pin(bench.launcher.launch(shell("cat", &[&word])));
        // The first look hands the start over to its thread; then the caller goes.
        assert!(futures::poll!(&mut launching).is_pending());
    }
    within(Duration::from_secs(10), "every place is free again", || {
        bench.launcher.shared.places.available_permits() == 8
    });
    assert!(processes_with(&word).is_empty());
    assert_eq!(bench.private_directories(), 0);
}
