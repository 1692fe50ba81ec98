//! The other half of each proof: the same attack as a plain child, where it wins. Only ever as nobody, and inside the
//! throw-away world.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::catalogue::{self, Attack};
use super::host::{self, Host, Touch};
use super::outer;

/// How it is shown that an attack works where nothing stands against it.
pub(crate) enum Control {
    /// Every attempt wins but those named, and this is what it gets to.
    Wins {
        except: &'static [&'static str],
        touches: &'static [Touch],
        namespace_root: bool,
    },
    /// It does not end.
    RunsOn,
    /// When its process group has been killed, something of it runs still.
    Survives,
    /// It ends with this code and tells nothing.
    Silent(i32),
    /// Its answer, written by the interpreter's own encoder, holds this.
    Naive(&'static str),
    /// Its output holds this.
    Output(&'static str),
    /// The required outcome is seen only when the attack was made.
    Observed(&'static str),
    /// It cannot be shown, for this reason.
    Absent(&'static str),
}

impl Control {
    pub(crate) const WINS: Self = Self::Wins {
        except: &[],
        touches: &[],
        namespace_root: false,
    };
}

/// Runs the control of `attack` and tells what is wrong.
pub(crate) fn check(attack: &Attack, host: &mut Host) -> Result<(), String> {
    let namespace_root = matches!(
        attack.control,
        Control::Wins {
            namespace_root: true,
            ..
        }
    );
    if let Control::Observed(why) | Control::Absent(why) = attack.control {
        return if why.is_empty() {
            Err("it needs a reason".into())
        } else {
            Ok(())
        };
    }
    let mut facts = host.facts();
    for (key, value) in attack.more.as_object().cloned().unwrap_or_default() {
        facts[key] = value;
    }
    if let Some(count) = facts.get("plain_count").cloned() {
        facts["count"] = count;
    }
    let mut plain = Plain::start(
        host,
        &outer::tools(),
        (attack.module, attack.callable),
        facts,
        namespace_root,
    );
    let result = judge(attack, &mut plain, host);
    drop(plain);
    host.touched();
    result
}

fn judge(attack: &Attack, plain: &mut Plain, host: &mut Host) -> Result<(), String> {
    match &attack.control {
        Control::Wins { except, touches, .. } => {
            plain.wait(Duration::from_secs(60)).ok_or("it does not end")?;
            let answer = plain.answer().ok_or_else(|| plain.problem())?;
            let answer = answer
                .get("value")
                .cloned()
                .ok_or_else(|| format!("it ended with {answer}"))?;
            let won = catalogue::won(&answer);
            for (attempt, word) in answer.as_object().ok_or("its answer is no object")? {
                if !attempt.starts_with('_')
                    && !except.contains(&attempt.as_str())
                    && !won.contains(&attempt.as_str())
                {
                    return Err(format!("{attempt} does not win: {word}"));
                }
            }
            if let Some(missing) = except.iter().find(|name| answer.get(**name).is_none()) {
                return Err(format!("{missing} is no attempt of it"));
            }
            // A process is signalled as soon as it runs next.
            let mut touched = host.touched();
            let until = Instant::now() + Duration::from_secs(5);
            while !touches.iter().all(|touch| touched.contains(touch)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
                touched.extend(host.touched());
            }
            if touched.iter().copied().collect::<Vec<_>>() != *touches {
                return Err(format!("it got to {touched:?} instead of {touches:?}"));
            }
            Ok(())
        }
        Control::RunsOn => match plain.wait(Duration::from_millis(1500)) {
            None => Ok(()),
            Some(status) => Err(format!("it ended: {status}, {}", plain.problem())),
        },
        Control::Survives => {
            plain.wait(Duration::from_secs(20)).ok_or("it does not end")?;
            plain.kill_group();
            std::thread::sleep(Duration::from_millis(200));
            match host::survivors().is_empty() {
                true => Err(format!("nothing is left of it; {}", plain.problem())),
                false => Ok(()),
            }
        }
        Control::Silent(code) => {
            let status = plain.wait(Duration::from_secs(20)).ok_or("it does not end")?;
            match plain.answer() {
                None if status.code() == Some(*code) => Ok(()),
                answer => Err(format!("it ended with {status} and {answer:?}")),
            }
        }
        Control::Naive(text) => {
            plain.wait(Duration::from_secs(20)).ok_or("it does not end")?;
            let answer = fs::read_to_string(plain.folder.join("answer")).unwrap_or_default();
            match answer.contains(text) {
                true => Ok(()),
                false => Err(format!("its answer is {answer:?}; {}", plain.problem())),
            }
        }
        Control::Output(text) => {
            plain.wait(Duration::from_secs(20)).ok_or("it does not end")?;
            let output = fs::read(plain.folder.join("stdout")).unwrap_or_default();
            match String::from_utf8_lossy(&output).contains(text) {
                true => Ok(()),
                false => Err(format!("its output is {:?}", String::from_utf8_lossy(&output))),
            }
        }
        Control::Observed(_) | Control::Absent(_) => Ok(()),
    }
}

/// What a callable answers as a plain child.
pub(crate) fn answer(host: &Host, source: &Path, module: &str, callable: &str) -> Value {
    let mut plain = Plain::start(host, source, (module, callable), host.facts(), false);
    plain.wait(Duration::from_secs(20)).expect("it ends");
    let answer = plain.answer().unwrap_or_else(|| panic!("{}", plain.problem()));
    answer["value"].clone()
}

/// An attack that runs as a plain child.
struct Plain {
    child: Child,
    folder: PathBuf,
}

impl Plain {
    fn start(
        host: &Host,
        source: &Path,
        (module, callable): (&str, &str),
        mut facts: Value,
        namespace_root: bool,
    ) -> Self {
        assert!(outer::is_inside() && !rustix::process::geteuid().is_root());
        // A copy of its own, which it may change, and an empty folder to work in.
        let folder = host.folder().join("plain");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("work")).unwrap();
        copy(source, &folder.join("tools"));
        facts["clean"] = json!(true);
        facts["environment"] = json!(["PATH"]);
        facts["result_type"] = json!(3);
        facts["answer"] = json!(folder.join("answer"));
        let arguments = json!({ "host": facts });
        fs::write(folder.join("arguments"), arguments.to_string()).unwrap();
        let open = |name: &str| fs::File::create(folder.join(name)).unwrap();
        let mut command = match namespace_root {
            true => {
                let mut command = Command::new("unshare");
                command.args(["-U", "-r", "-m", "-u", "/usr/bin/python3"]);
                command
            }
            false => Command::new("/usr/bin/python3"),
        };
        let child = command
            .args(["-I", "-S", "-B"])
            .arg(outer::tools().join("control.py"))
            .arg(folder.join("tools"))
            .args([module, callable])
            .current_dir(folder.join("work"))
            .stdin(fs::File::open(folder.join("arguments")).unwrap())
            .stdout(Stdio::from(open("stdout")))
            .stderr(Stdio::from(open("stderr")))
            .process_group(0)
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            let status = self.child.try_wait().unwrap();
            if status.is_some() || Instant::now() >= until {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn answer(&self) -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(self.folder.join("answer")).ok()?).ok()
    }

    fn problem(&self) -> String {
        let answer = fs::read_to_string(self.folder.join("answer")).unwrap_or_default();
        let errors = fs::read_to_string(self.folder.join("stderr")).unwrap_or_default();
        format!("answer {answer:?}, errors {errors}")
    }

    fn kill_group(&self) {
        let group = rustix::process::Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.kill_group();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let left = host::survivors();
            if left.is_empty() || Instant::now() > until {
                break;
            }
            for pid in left {
                if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
}
