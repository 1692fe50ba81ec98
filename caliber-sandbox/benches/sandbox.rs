//! What isolation costs: calls in every way of running, beside a plain `python3 -I` child that does the same round trip.
//!
//! `cargo bench -p caliber-sandbox --bench sandbox`, as root and as another user. With `heavy` as an argument numpy and
//! pandas are installed into a temporary folder first, with the pip of the interpreter. It fails when a bound is missed.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints, and ends when something fails"
)]

#[cfg(target_os = "linux")]
fn main() {
    linux::run();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("the sandbox of this system runs nothing");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use caliber_core::clock::Deadline;
    use caliber_core::id::ProjectId;
    use caliber_core::json::{JsonLimits, JsonText};
    use caliber_core::sandbox::{
        ExecutionMode, ExecutionPreference, PinnedProgram, Program, RunLimits, RunRequest, RunStatus,
    };
    use caliber_sandbox::linux::engine::Engine;
    use caliber_sandbox::linux::landlock;
    use caliber_sandbox::linux::layers::Layers;
    use caliber_sandbox::pin::{PinLimits, SnapshotStore, Stop};
    use caliber_sandbox::settings::SandboxSettings;

    const INTERPRETER: &str = "/usr/bin/python3";
    const LIGHT: &str = "def run(a, b):\n    return {'sum': a + b}\n";
    const HEAVY: &str = "import numpy, pandas\ndef run(a, b):\n    return {'sum': a + b}\n";
    const ARGUMENTS: &str = r#"{"a": 40, "b": 2}"#;
    const ANSWER: &str = r#"{"sum":42}"#;
    /// What a plain child runs: arguments on standard input, the value on standard output.
    const PLAIN: &str = "import json, sys\nsys.path[:0] = sys.argv[1:]\nimport tool\n\
                         json.dump(tool.run(**json.load(sys.stdin)), sys.stdout, separators=(',', ':'))\n";

    struct Tool {
        program: Arc<PinnedProgram>,
        paths: Vec<PathBuf>,
        memory: u64,
    }

    struct Bench {
        folder: PathBuf,
        store: SnapshotStore,
    }

    pub(super) fn run() {
        let heavy = std::env::args().any(|argument| argument == "heavy");
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().canonicalize().unwrap();
        let store = SnapshotStore::open(&folder.join("snapshots"), PinLimits::default()).unwrap();
        let bench = Bench { folder, store };
        let user = if rustix::process::geteuid().is_root() {
            "root"
        } else {
            "unprivileged"
        };
        println!("as {user}; times in milliseconds: median, 99 of 100, number");

        let light = bench.tool("light", LIGHT, Vec::new(), 256 << 20);
        let plain = bench.row("plain `python3 -I` child", 100, || bench.plain(&light));
        let engine = bench.engine(0, 4);
        let cold = bench.row("cold, all layers", 100, || {
            bench.call(&engine, &light, ExecutionPreference::Cold).1
        });
        bench.call(&engine, &light, ExecutionPreference::Isolated);
        let zygote = bench.row("zygote", 1000, || {
            bench.call(&engine, &light, ExecutionPreference::Isolated).1
        });
        let spare = bench.spares("spare", &light);
        let calls = bench.throughput(&light);
        let fewest = if user == "root" { 700.0 } else { 500.0 };
        let mut bounds = vec![
            Bound::at_most("cold / plain", cold / plain, 1.2),
            Bound::at_most("zygote, ms", zygote, 4.0),
            Bound::at_most("spare, ms", spare, 1.0),
            Bound::at_least("plain / spare", plain / spare, 40.0),
            Bound::at_least("calls per second, two at once", calls, fewest),
        ];

        if heavy {
            let packages = bench
                .install()
                .expect("numpy and pandas could not be installed; leave out `heavy`");
            let heavy = bench.tool("heavy", HEAVY, vec![packages], 4 << 30);
            bench.row("heavy: plain child", 10, || bench.plain(&heavy));
            bench.row("heavy: cold, all layers", 10, || {
                bench.call(&engine, &heavy, ExecutionPreference::Cold).1
            });
            bench.call(&engine, &heavy, ExecutionPreference::Isolated);
            let zygote = bench.row("heavy: zygote", 300, || {
                let (mode, took) = bench.call(&engine, &heavy, ExecutionPreference::Isolated);
                assert_eq!(mode, ExecutionMode::Zygote);
                took
            });
            let spare = bench.spares("heavy: spare", &heavy);
            bounds.push(Bound::at_most("heavy zygote, ms", zygote, 8.0));
            bounds.push(Bound::at_most("heavy spare, ms", spare, 1.0));
        }

        println!();
        bounds.iter().for_each(Bound::print);
        if bounds.iter().any(|bound| !bound.holds) {
            std::process::exit(1);
        }
    }

    /// A figure that is promised, and whether it was kept in this run.
    struct Bound {
        text: String,
        holds: bool,
    }

    impl Bound {
        fn at_most(what: &str, figure: f64, most: f64) -> Self {
            Self {
                text: format!("{what:<30} {figure:>8.2}   at most {most}"),
                holds: figure <= most,
            }
        }

        fn at_least(what: &str, figure: f64, least: f64) -> Self {
            Self {
                text: format!("{what:<30} {figure:>8.2}   at least {least}"),
                holds: figure >= least,
            }
        }

        fn print(&self) {
            println!(
                "{:<56} {}",
                self.text,
                if self.holds { "holds" } else { "MISSED" }
            );
        }
    }

    impl Bench {
        fn engine(&self, spares: usize, places: usize) -> Engine {
            let settings = SandboxSettings {
                interpreter: PathBuf::from(INTERPRETER),
                snapshot_folder: self.folder.join("snapshots"),
                spares,
                places,
                ..SandboxSettings::default()
            };
            let layers = Layers {
                namespaces: true,
                proc: true,
                landlock: landlock::version(),
                seccomp: true,
                cgroups: rustix::process::geteuid().is_root(),
                unenforced: Vec::new(),
            };
            Engine::start(settings, layers).unwrap()
        }

        fn tool(&self, name: &str, source: &str, packages: Vec<PathBuf>, memory: u64) -> Tool {
            let root = self.folder.join(name);
            std::fs::create_dir(&root).unwrap();
            std::fs::write(root.join("tool.py"), source).unwrap();
            let program = Program::Python {
                module_path: "tool".into(),
                callable_name: "run".into(),
                source_roots: vec![root.clone()],
                package_roots: packages.clone(),
            };
            let stop = Stop::at(Deadline::after(Duration::from_secs(60)));
            let program = Arc::new(self.store.pin(&program, INTERPRETER, &stop).unwrap());
            let paths = [root].into_iter().chain(packages).collect();
            Tool {
                program,
                paths,
                memory,
            }
        }

        fn plain(&self, tool: &Tool) -> Duration {
            let script = self.folder.join("plain.py");
            if !script.exists() {
                std::fs::write(&script, PLAIN).unwrap();
            }
            let begun = Instant::now();
            let mut child = Command::new(INTERPRETER)
                .arg("-I")
                .arg(&script)
                .args(&tool.paths)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(ARGUMENTS.as_bytes())
                .unwrap();
            let output = child.wait_with_output().unwrap();
            let took = begun.elapsed();
            assert_eq!(output.stdout, ANSWER.as_bytes());
            took
        }

        fn call(
            &self,
            engine: &Engine,
            tool: &Tool,
            preference: ExecutionPreference,
        ) -> (ExecutionMode, Duration) {
            let request = RunRequest {
                program: Arc::clone(&tool.program),
                arguments: JsonText::parse(ARGUMENTS, JsonLimits::ARGUMENTS).unwrap(),
                secrets: Vec::new(),
                tenant: ProjectId::default(),
                preference,
                limits: RunLimits {
                    memory_bytes: Some(tool.memory),
                    ..RunLimits::default()
                },
                startup_grace: Duration::from_secs(60),
                deadline: Deadline::after(Duration::from_secs(60)),
                result_bytes: 16 << 20,
            };
            let begun = Instant::now();
            let outcome = engine.run_blocking(request).unwrap();
            let took = begun.elapsed();
            match &outcome.status {
                RunStatus::Ok { value } if value.as_str() == ANSWER => (outcome.mode, took),
                _ => panic!("{outcome:?}"),
            }
        }

        fn row(&self, name: &str, count: usize, mut once: impl FnMut() -> Duration) -> f64 {
            once();
            let mut times: Vec<Duration> = (0..count).map(|_| once()).collect();
            report(name, &mut times)
        }

        /// Calls that find a process waiting for them; the pause is for the next one to be made.
        fn spares(&self, name: &str, tool: &Tool) -> f64 {
            let engine = self.engine(2, 4);
            let mut times = Vec::new();
            while times.len() < 300 {
                let (mode, took) = self.call(&engine, tool, ExecutionPreference::Isolated);
                if mode == ExecutionMode::Spare {
                    times.push(took);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            report(name, &mut times)
        }

        /// Isolated calls a second, two at once.
        fn throughput(&self, tool: &Tool) -> f64 {
            let engine = self.engine(0, 2);
            self.call(&engine, tool, ExecutionPreference::Isolated);
            let begun = Instant::now();
            let end = begun + Duration::from_secs(5);
            let calls: usize = std::thread::scope(|scope| {
                let callers: Vec<_> = (0..2)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut calls = 0;
                            while Instant::now() < end {
                                self.call(&engine, tool, ExecutionPreference::Isolated);
                                calls += 1;
                            }
                            calls
                        })
                    })
                    .collect();
                callers.into_iter().map(|caller| caller.join().unwrap()).sum()
            });
            calls as f64 / begun.elapsed().as_secs_f64()
        }

        /// A folder with numpy and pandas.
        fn install(&self) -> Option<PathBuf> {
            let environment = self.folder.join("environment");
            let run = |program: &Path, args: &[&str]| {
                let status = Command::new(program).args(args).stdout(Stdio::null()).status();
                status.is_ok_and(|status| status.success()).then_some(())
            };
            let place = environment.to_str()?;
            run(Path::new(INTERPRETER), &["-m", "venv", place])?;
            run(
                &environment.join("bin/pip"),
                &["install", "--quiet", "numpy", "pandas"],
            )?;
            let library = std::fs::read_dir(environment.join("lib"))
                .ok()?
                .next()?
                .ok()?
                .path();
            Some(library.join("site-packages"))
        }
    }

    fn report(name: &str, times: &mut [Duration]) -> f64 {
        times.sort();
        let at = |part: f64| {
            let index = ((times.len() - 1) as f64 * part).round() as usize;
            times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        let (median, late) = (at(0.5), at(0.99));
        println!("{name:<28} {median:>8.2} {late:>8.2} {:>6}", times.len());
        median
    }
}
