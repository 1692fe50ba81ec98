//! From what the canaries could and could not do to what is reported.

use std::collections::{BTreeMap, BTreeSet};

use caliber_core::sandbox::{Enforcement, Guarantee, SandboxReport};
use rustix::io::Errno;

use super::canary::Answer;
use super::remedy::{Hints, remedy};
use super::{Failed, PROCESSES, Plan};
use crate::linux::cgroup::{ControlGroups, Gap};
use crate::linux::spawn::Stage;
use crate::settings::SandboxSettings;

/// What would have to be reported to its developers.
const ESCAPED: &str =
    "the layers were built and yet the probe got through; do not run tools here, and report this";

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Why nothing can run at all.
    pub(crate) problem: Option<String>,
    /// What a child is built from.
    pub(crate) plan: Plan,
    /// The steps that failed on the way to the plan.
    pub(crate) failed: Vec<Failed>,
    /// Why the copies of sources cannot be kept.
    pub(crate) snapshots: Option<String>,
    /// Whether a forked call was seen to hold what it has to.
    pub(crate) forks: bool,
    pub(crate) groups: Option<ControlGroups>,
    pub(crate) memory: Option<Result<String, Gap>>,
    pub(crate) processes: Option<Result<String, Gap>>,
    pub(crate) kill: Option<Result<String, Gap>>,
    answers: Vec<Answer>,
    /// What was reached, as the machine saw it.
    reached: BTreeSet<&'static str>,
}

impl Findings {
    pub(crate) fn add(&mut self, answer: Answer, reached: Vec<&'static str>) {
        self.answers.push(answer);
        self.reached.extend(reached);
    }

    /// Groups can be made, but children cannot join them.
    pub(crate) fn lose_groups(&mut self, errno: Errno) {
        for found in [&mut self.memory, &mut self.processes, &mut self.kill] {
            *found = Some(Err(Gap {
                stage: Stage::Cgroup.as_str().to_owned(),
                errno: Some(errno),
                remedy: "a control group was made but a child could not join it; name a group that this process may manage in the setting control_group".to_owned(),
            }));
        }
    }

    pub(crate) fn report(&self, settings: &SandboxSettings, interpreter: Option<String>) -> SandboxReport {
        let hints = Hints::read();
        let guarantees: BTreeMap<_, _> = Guarantee::ALL
            .into_iter()
            .map(|guarantee| (guarantee, self.enforcement(guarantee, hints)))
            .collect();
        let broken = self
            .answers
            .iter()
            .any(|answer| answer.tries.get("scratch").is_none_or(|word| word != "open"));
        let problem = self.problem.clone().or_else(|| {
            broken.then(|| "a tool could not write to its scratch folder inside of the sandbox".to_owned())
        });
        SandboxReport {
            backend: "linux".to_owned(),
            guarantees,
            required: settings.required.clone(),
            interpreter,
            problem,
            unenforced_allowed: settings.allow_unenforced,
        }
    }

    fn enforcement(&self, guarantee: Guarantee, hints: Hints) -> Enforcement {
        if let Some(problem) = &self.problem {
            return Enforcement::NotEnforced {
                stage: "probe".to_owned(),
                errno: String::new(),
                remedy: problem.clone(),
            };
        }
        let isolated = self.plan.namespaces;
        let landlock = self.plan.landlock.map(|version| format!("landlock:{version}"));
        let seccomp = self.plan.seccomp.then(|| "seccomp".to_owned());
        let when = |holds: bool, means: &str| holds.then(|| means.to_owned());
        let mount = when(isolated, "mount_namespace");
        match guarantee {
            Guarantee::FsRead => self.judge(
                hints,
                [mount, landlock],
                &["read_file", "list_folder", "read_through_proc", "file_metadata"],
                &["mnt"],
            ),
            Guarantee::FsWrite => self.judge(
                hints,
                [mount, landlock],
                &[
                    "write_folder",
                    "write_file",
                    "write_source",
                    "write_root",
                    "change_mode",
                ],
                &["mnt"],
            ),
            Guarantee::Net => self.judge(
                hints,
                [when(isolated, "network_namespace"), seccomp],
                &["tcp", "udp", "vsock", "packet"],
                &["net"],
            ),
            Guarantee::Ipc => {
                // In a namespace of its own a tool may have such objects: they are nobody else's.
                let objects = ["unix_abstract", "unix_path", "sysv_shm", "message_queue"];
                let tried = if isolated {
                    objects.get(..2)
                } else {
                    objects.get(..)
                };
                self.judge(
                    hints,
                    [when(isolated, "ipc_namespace"), seccomp],
                    tried.unwrap_or_default(),
                    &["ipc"],
                )
            }
            Guarantee::ProcVisibility => {
                let scoped = self
                    .plan
                    .landlock
                    .filter(|version| !isolated && *version >= 6)
                    .and(landlock);
                self.judge(
                    hints,
                    [when(isolated, "pid_namespace"), scoped],
                    &["see_processes", "sense_process", "signal_process"],
                    &["pid"],
                )
            }
            Guarantee::TreeKill => self.tree_kill(hints),
            Guarantee::TreeMemory => bounded(self.memory.as_ref(), None),
            Guarantee::TreePids => {
                let kept = self
                    .answers
                    .iter()
                    .all(|answer| answer.forked > 0 && answer.forked <= PROCESSES);
                let limit =
                    (isolated && kept && !self.answers.is_empty()).then(|| "process_limit".to_owned());
                bounded(self.processes.as_ref(), limit)
            }
            Guarantee::SyscallSurface => self.with_status(self.judge(
                hints,
                [seccomp, None],
                &[
                    "unshare",
                    "io_uring",
                    "keyctl",
                    "process_vm",
                    "userfaultfd",
                    "kcmp",
                    "bpf",
                ],
                &[],
            )),
            Guarantee::CallIsolation => {
                let judged = self.judge(hints, [mount, landlock], &["left_behind"], &[]);
                match judged {
                    Enforcement::Enforced { by } if !self.tree_kill(hints).is_enforced() => {
                        Enforcement::Partial {
                            by,
                            gaps: vec!["processes_that_stay".to_owned()],
                        }
                    }
                    other => other,
                }
            }
            Guarantee::SourcePinned => match &self.snapshots {
                Some(problem) => Enforcement::NotEnforced {
                    stage: "snapshot_folder".to_owned(),
                    errno: String::new(),
                    remedy: problem.clone(),
                },
                None => {
                    let judged = self.judge(hints, [mount, landlock], &["write_source"], &[]);
                    match judged {
                        Enforcement::Enforced { mut by } => {
                            by.insert(0, "snapshot".to_owned());
                            Enforcement::Enforced { by }
                        }
                        other => other,
                    }
                }
            },
        }
    }

    /// What holds of something that `means` are meant to prevent: `tries` are the ways that were tried, `shared` the
    /// namespaces that must not be the machine's.
    fn judge(
        &self,
        hints: Hints,
        means: [Option<String>; 2],
        tries: &[&str],
        shared: &[&'static str],
    ) -> Enforcement {
        let by: Vec<_> = means.into_iter().flatten().collect();
        if by.is_empty() {
            return self.lacking(hints);
        }
        let mut gaps = Vec::new();
        let mut open = 0;
        for name in tries {
            match self.word(name) {
                Word::Held => {}
                Word::Open => {
                    open += 1;
                    gaps.push((*name).to_owned());
                }
                Word::Untested => gaps.push(format!("{name}: not tested")),
            }
        }
        for name in shared {
            if self.answers.iter().any(|answer| answer.shared.contains(name)) {
                gaps.push(format!("{name}_namespace is shared"));
            }
        }
        if self.answers.is_empty() || open == tries.len() {
            return Enforcement::NotEnforced {
                stage: "probe".to_owned(),
                errno: String::new(),
                remedy: ESCAPED.to_owned(),
            };
        }
        if gaps.is_empty() {
            return Enforcement::Enforced { by };
        }
        // What would have closed them, had it been there.
        if let Some(failed) = self.failed.first() {
            gaps.push(format!(
                "step {} failed with {}: {}",
                failed.stage,
                errno_name(failed.errno),
                remedy(failed, hints)
            ));
        }
        Enforcement::Partial { by, gaps }
    }

    /// The kernel's own account of the child: a filter, no way to new privileges, and no capabilities.
    fn with_status(&self, judged: Enforcement) -> Enforcement {
        let wanted = [("seccomp", 2), ("no_new_privileges", 1), ("capabilities", 0)];
        let is_off = |name: &str, value: u64| {
            let mut statuses = self.answers.iter().map(|answer| answer.status.get(name));
            statuses.any(|found| found != Some(&value))
        };
        let off = wanted.iter().filter(|(name, value)| is_off(name, *value));
        let off: Vec<_> = off.map(|(name, _)| format!("{name}: not as set")).collect();
        match judged {
            Enforcement::Enforced { by } if !off.is_empty() => Enforcement::Partial { by, gaps: off },
            other => other,
        }
    }

    fn word(&self, name: &str) -> Word {
        if self.reached.contains(name) {
            return Word::Open;
        }
        let words = self.answers.iter().map(|answer| answer.tries.get(name));
        words
            .map(|word| match word.map(String::as_str) {
                Some("open") => Word::Open,
                Some(word) if word.starts_with("held:") => Word::Held,
                // The process of the machine has a number that the sandbox has too; its namespace tells.
                None if matches!(name, "sense_process" | "signal_process") && self.plan.namespaces => {
                    Word::Held
                }
                _ => Word::Untested,
            })
            .max()
            .unwrap_or(Word::Untested)
    }

    fn tree_kill(&self, hints: Hints) -> Enforcement {
        let stayed = self.answers.iter().any(|answer| answer.stayed);
        let mut by = Vec::new();
        if self.plan.namespaces {
            by.push("pid_namespace".to_owned());
        }
        if let Some(Ok(means)) = &self.kill
            && self.groups.is_some()
        {
            by.push(means.clone());
        }
        let tested = self.answers.iter().any(|answer| answer.daemon);
        match (by.is_empty(), stayed) {
            (false, false) if tested => Enforcement::Enforced { by },
            (false, false) => Enforcement::Partial {
                by,
                gaps: vec!["processes_that_stay: not tested".to_owned()],
            },
            (true, _) => self.lacking(hints),
            _ => Enforcement::NotEnforced {
                stage: "probe".to_owned(),
                errno: String::new(),
                remedy: ESCAPED.to_owned(),
            },
        }
    }

    /// Nothing is there that could enforce: because of the first step that failed.
    fn lacking(&self, hints: Hints) -> Enforcement {
        match self.failed.first() {
            Some(failed) => Enforcement::NotEnforced {
                stage: failed.stage.as_str().to_owned(),
                errno: errno_name(failed.errno),
                remedy: remedy(failed, hints).to_owned(),
            },
            None => Enforcement::NotEnforced {
                stage: "probe".to_owned(),
                errno: String::new(),
                remedy: ESCAPED.to_owned(),
            },
        }
    }
}

/// What is worse counts: the order is that of getting worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Held,
    Untested,
    Open,
}

fn bounded(found: Option<&Result<String, Gap>>, limit: Option<String>) -> Enforcement {
    match (found, limit) {
        (Some(Ok(means)), limit) => Enforcement::Enforced {
            by: [Some(means.clone()), limit].into_iter().flatten().collect(),
        },
        (_, Some(limit)) => Enforcement::Enforced { by: vec![limit] },
        (Some(Err(gap)), None) => Enforcement::NotEnforced {
            stage: gap.stage.clone(),
            errno: gap.errno.map(errno_name).unwrap_or_default(),
            remedy: gap.remedy.clone(),
        },
        (None, None) => Enforcement::NotEnforced {
            stage: "probe".to_owned(),
            errno: String::new(),
            remedy: "control groups were not looked for".to_owned(),
        },
    }
}

/// The system's name of an error, such as `EPERM`.
fn errno_name(errno: Errno) -> String {
    let known = [
        (Errno::PERM, "EPERM"),
        (Errno::ACCESS, "EACCES"),
        (Errno::NOSYS, "ENOSYS"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::INVAL, "EINVAL"),
        (Errno::NOENT, "ENOENT"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::BUSY, "EBUSY"),
        (Errno::ROFS, "EROFS"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::MFILE, "EMFILE"),
        (Errno::USERS, "EUSERS"),
        (Errno::IO, "EIO"),
        (Errno::LOOP, "ELOOP"),
        (Errno::SRCH, "ESRCH"),
    ];
    known.iter().find(|(known, _)| *known == errno).map_or_else(
        || format!("errno {}", errno.raw_os_error()),
        |(_, name)| (*name).to_owned(),
    )
}
