//! What an operator can do about a step that failed. The kernel's settings are read for these words only.

use std::path::Path;

use rustix::io::Errno;

use super::Failed;
use crate::linux::spawn::Stage;

/// What is known of the machine, for the choice of words.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hints {
    /// Namespaces of unprivileged users are held back by AppArmor.
    pub(super) apparmor: bool,
    /// There may be no namespaces of users at all.
    pub(super) no_user_namespaces: bool,
    /// This is a container.
    pub(super) container: bool,
}

impl Hints {
    pub(super) fn read() -> Self {
        let number = |path: &str| {
            let text = std::fs::read_to_string(path).ok()?;
            text.trim().parse::<u64>().ok()
        };
        Self {
            apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1),
            no_user_namespaces: number("/proc/sys/user/max_user_namespaces") == Some(0)
                || number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0),
            container: ["/.dockerenv", "/run/.containerenv"]
                .iter()
                .any(|path| Path::new(path).exists()),
        }
    }
}

/// The remedy for a failed step.
pub(super) fn remedy(failed: &Failed, hints: Hints) -> &'static str {
    const SERVICE: &str = "this container may not make namespaces: run `caliber sandbox serve` outside of it and name its address here, or start the container with a seccomp profile that allows clone, unshare and mount";
    match failed.stage {
        Stage::Clone | Stage::UserMap | Stage::MountPrivate | Stage::MountRoot | Stage::MountTmpfs
            if hints.apparmor =>
        {
            "AppArmor takes the rights away from namespaces of unprivileged users: install a profile with the rule `userns,` for this executable, or run the sandbox as root"
        }
        Stage::Clone if failed.errno == Errno::NOSPC || hints.no_user_namespaces => {
            "namespaces of users are switched off: raise user.max_user_namespaces, and set kernel.unprivileged_userns_clone to 1 where it exists"
        }
        Stage::Clone if failed.errno == Errno::NOSYS => {
            "this kernel does not know these namespaces: use Linux 5.13 or newer, built with them"
        }
        Stage::Clone if failed.errno == Errno::AGAIN => {
            "there are too many processes of this user: raise the limit of processes (ulimit -u, TasksMax=, --pids-limit)"
        }
        Stage::Clone | Stage::UserMap | Stage::MountPrivate | Stage::MountRoot | Stage::MountTmpfs => SERVICE,
        Stage::MountProc => {
            "parts of /proc are hidden from this container, so that a new one cannot be mounted: tools run without /proc; to have it, start the container with unmasked paths (Docker: --security-opt systempaths=unconfined)"
        }
        Stage::MountBind | Stage::MountDevice | Stage::PivotRoot | Stage::HostName if hints.container => {
            SERVICE
        }
        Stage::MountBind | Stage::MountDevice | Stage::PivotRoot | Stage::HostName => {
            "the private file tree could not be built: look for a service manager's or a container's filter of system calls (SystemCallFilter=, RestrictNamespaces=), and lift it for this process"
        }
        Stage::Landlock => {
            "this kernel has no Landlock: use Linux 5.13 or newer, with landlock in the list of security modules (lsm= on the kernel's command line)"
        }
        Stage::Seccomp | Stage::NoNewPrivileges => {
            "this kernel does not filter system calls: use one that is built with CONFIG_SECCOMP_FILTER"
        }
        _ => {
            "see the step and the error, and lift what a service manager or a container forbids this process"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_fits_what_failed() {
        let failed = |stage, errno| Failed { stage, errno };
        let plain = Hints::default();
        let ubuntu = Hints {
            apparmor: true,
            ..plain
        };
        for stage in [Stage::Clone, Stage::UserMap, Stage::MountPrivate] {
            assert!(remedy(&failed(stage, Errno::ACCESS), ubuntu).contains("AppArmor"));
            assert!(remedy(&failed(stage, Errno::PERM), plain).contains("sandbox serve"));
        }
        assert!(remedy(&failed(Stage::Clone, Errno::NOSPC), plain).contains("max_user_namespaces"));
        assert!(remedy(&failed(Stage::MountProc, Errno::PERM), plain).contains("/proc"));
        assert!(remedy(&failed(Stage::Landlock, Errno::OPNOTSUPP), plain).contains("lsm="));
        for stage in Stage::ALL {
            let text = remedy(&failed(stage, Errno::PERM), plain);
            assert!(!text.is_empty() && !text.contains('\n'), "{stage}");
        }
    }
}
