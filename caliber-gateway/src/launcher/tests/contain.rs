//! What contains a child, and what is told about it.

use super::*;

#[tokio::test]
async fn a_child_leads_a_session_and_a_group_of_its_own() {
    for tool_path in ["/usr/local/bin:/usr/bin:/bin", "/nowhere"] {
        let bench = bench(|settings| settings.tool_path = tool_path.into());
        // Fields 1, 5 and 6 of stat: process, group, session.
        let script = "read -r line < /proc/self/stat; set -- $line; echo $1 $5 $6; cat";
        let mut process = bench.shell(script, &[]).await;
        let line = first_line(&mut process).await;
        let ids: Vec<u32> = line.split(' ').map(|id| id.parse().unwrap()).collect();
        assert_eq!(ids[0], process.handle.id());
        assert_eq!(ids[1], process.handle.id(), "its own group");
        let has_session = ids[2] == process.handle.id();
        let note = bench.measure("process_group").note;
        assert_eq!(
            has_session,
            !note.starts_with("without"),
            "the note is true: {note}"
        );
        process.handle.terminate().await;
    }
}

#[tokio::test]
async fn a_child_gains_no_privileges() {
    let script = "grep NoNewPrivs /proc/self/status";
    let strict = bench(|_| ());
    let process = strict.shell(script, &[]).await;
    assert_eq!(read(process.stdout).await, "NoNewPrivs:\t1\n");
    let bench = bench(|settings| settings.new_privileges = true);
    let process = bench.shell(script, &[]).await;
    // This process itself may live without new privileges; then its children do too.
    let expected = format!("NoNewPrivs:\t{}\n", own_status("NoNewPrivs"));
    assert_eq!(read(process.stdout).await, expected);
    assert!(!bench.measure("no_new_privileges").enforced);
}

#[tokio::test]
async fn this_process_keeps_its_mask_and_its_privileges() {
    let state = || ["Umask", "NoNewPrivs"].map(own_status);
    let before = state();
    let bench = bench(|_| ());
    let process = bench.shell("umask", &[]).await;
    assert_eq!(read(process.stdout).await.trim_end(), mask_of_children(&bench));
    assert_eq!(state(), before);
}

#[tokio::test]
async fn containment_names_every_measure_and_what_is_switched_off() {
    let all = bench(|_| ());
    let off = bench(|settings| {
        settings.cgroup = false;
        settings.guard = false;
        settings.parent_death_signal = false;
    });
    let names = |bench: &Bench| -> BTreeSet<String> {
        bench
            .launcher
            .containment()
            .into_iter()
            .map(|found| found.measure)
            .collect()
    };
    assert_eq!(names(&all), names(&off));
    for name in ["cgroup", "guard", "parent_death_signal"] {
        let measure = off.measure(name);
        assert!(!measure.enforced, "{name}");
        assert!(measure.note.contains("switch"), "{measure:?}");
    }
    let poor = bench(|settings| settings.tool_path = "/nowhere".into());
    for name in ["guard", "parent_death_signal"] {
        assert!(!poor.measure(name).enforced, "{name}");
    }
    assert!(!all.measure("isolation").enforced, "never claimed here");
}

/// Prints the state of the process's descriptors as containment tells it. Only in a process of its own: descriptors
/// without close-on-exec would reach the children of other tests.
#[test]
fn part_with_a_leaking_descriptor() {
    if std::env::var(PART).as_deref() != Ok("leak") {
        return;
    }
    let before = bench(|_| ()).measure("no_inherited_descriptors");
    let file = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let after = bench(|_| ()).measure("no_inherited_descriptors");
    println!("\nleaks {} {}", before.enforced, after.enforced);
}

#[test]
fn a_descriptor_that_would_be_inherited_is_told() {
    let mut part = part("contain::part_with_a_leaking_descriptor", "leak")
        .spawn()
        .unwrap();
    let lines = BufReader::new(part.stdout.take().unwrap())
        .lines()
        .map_while(std::io::Result::ok);
    let line = lines
        .filter_map(|line| line.strip_prefix("leaks ").map(str::to_owned))
        .next();
    part.wait().unwrap();
    let line = line.expect("the part speaks");
    // What this process inherited itself counts before already.
    assert!(line == "true false" || line == "false false", "{line}");
}
