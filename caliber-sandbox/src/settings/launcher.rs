//! What stdio servers that are started in namespaces are given.
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only Linux starts something with these")
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use caliber_core::process::Launch;
use caliber_core::text::shown;
use caliber_core::{Error, Result};

/// How servers are started and stopped.
#[derive(Clone, Debug)]
pub struct LauncherSettings {
    /// The most children at once; beyond that a start is refused. Default 64; at most 4,096.
    pub children: usize,
    /// How long a child may take to end by itself once its input was closed. Default 1 s.
    pub input_grace: Duration,
    /// How long a child may take to end after `SIGTERM`. Default 2 s.
    pub term_grace: Duration,
    /// What a server gets that no entry of [`profiles`](Self::profiles) fits.
    pub profile: ServerProfile,
    /// What certain servers get instead. The first that fits counts.
    pub profiles: Vec<(ServerMatch, ServerProfile)>,
    /// Where caliber runs as root: the first of as many user (and group) ids as there may be children, and one more, each
    /// for one at once. They must belong to nobody, code tools included. Default 2,000,100,000.
    pub first_uid: u32,
    /// The control group to make the servers' groups in, as `/proc/self/cgroup` shows paths. Default: this process's.
    pub control_group: Option<PathBuf>,
}

impl Default for LauncherSettings {
    fn default() -> Self {
        Self {
            children: 64,
            input_grace: Duration::from_secs(1),
            term_grace: Duration::from_secs(2),
            profile: ServerProfile::default(),
            profiles: Vec::new(),
            first_uid: 2_000_100_000,
            control_group: None,
        }
    }
}

/// Which servers a profile is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMatch {
    /// The executable, as the server's definition names it.
    pub executable: PathBuf,
    /// What its arguments begin with.
    pub args: Vec<String>,
}

/// What a server may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerProfile {
    /// Whether it uses the host's network: all of it, to any address. Otherwise it has one of its own with nothing in
    /// it. Default: no.
    pub network: bool,
    /// Files and folders that it sees at their own places, besides the system's programs and libraries (`/usr` and what
    /// belongs to it). It may read and execute them. Absolute. Default: none.
    pub readable: Vec<PathBuf>,
    /// Files and folders that it sees at their own places and may change, but not execute. Absolute. Default: none.
    pub writable: Vec<PathBuf>,
    /// Where caliber runs as root: the user that it runs as, who must be let to what is readable and writable. `None`
    /// gives it one of its own. Default: none.
    pub user: Option<u32>,
    /// What it may use.
    pub limits: ServerLimits,
}

/// What one server may use, its descendants included unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Memory of all its processes together, in bytes, where a control group can be made. Default 2 GiB.
    pub memory_bytes: u64,
    /// Address space of each process, in bytes. Programs with a compiler inside reserve far more than they use, so the
    /// default is no limit.
    pub address_space_bytes: Option<u64>,
    /// Processes and threads. Default 256.
    pub processes: u64,
    /// Open descriptors of each process. Default 1,024.
    pub open_files: u64,
    /// The size of its working folder, and of `/tmp`, in bytes. Both are held in memory. Default 256 MiB.
    pub scratch_bytes: u64,
    /// Files and folders in each of them. Default 65,536.
    pub scratch_inodes: u64,
    /// The largest file that it may write, in bytes. Default 4 GiB.
    pub file_bytes: u64,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 2 << 30,
            address_space_bytes: None,
            processes: 256,
            open_files: 1024,
            scratch_bytes: 256 << 20,
            scratch_inodes: 65_536,
            file_bytes: 4 << 30,
        }
    }
}

impl LauncherSettings {
    /// The most children that may be configured.
    const CHILDREN: usize = 4096;

    pub(crate) fn check(&self) -> Result<()> {
        if self.children == 0 || self.children > Self::CHILDREN {
            return Err(Error::invalid(
                "children",
                format!("must be 1 to {}", Self::CHILDREN),
            ));
        }
        let ids = u32::try_from(self.children).unwrap_or(u32::MAX);
        // The last id means "no change" to the kernel. One more than children is for the trial.
        if self.first_uid == 0
            || self
                .first_uid
                .checked_add(ids)
                .is_none_or(|last| last == u32::MAX)
        {
            return Err(Error::invalid(
                "first_uid",
                "must be above 0 and leave room for as many ids as children",
            ));
        }
        let profiles = self.profiles.iter().map(|(_, profile)| profile);
        profiles.chain([&self.profile]).try_for_each(ServerProfile::check)
    }

    /// What the server that `launch` starts gets.
    pub(crate) fn profile_of(&self, launch: &Launch) -> &ServerProfile {
        self.profiles
            .iter()
            .find(|(which, _)| which.fits(&launch.executable, &launch.args))
            .map_or(&self.profile, |(_, profile)| profile)
    }
}

impl ServerMatch {
    fn fits(&self, executable: &Path, args: &[String]) -> bool {
        self.executable == executable && args.starts_with(&self.args)
    }
}

impl ServerProfile {
    fn check(&self) -> Result<()> {
        let shown_paths = [("readable", &self.readable), ("writable", &self.writable)];
        for (field, paths) in shown_paths {
            for path in paths {
                if !path.is_absolute() || path.parent().is_none() {
                    return Err(Error::invalid(
                        field,
                        format!(
                            "{} is not an absolute path below the root",
                            shown(&path.to_string_lossy())
                        ),
                    ));
                }
            }
        }
        if self.user == Some(0) || self.user == Some(u32::MAX) {
            return Err(Error::invalid("user", "a server never runs as root"));
        }
        let limits = self.limits;
        if limits.processes < 2
            || limits.open_files < 4
            || limits.scratch_bytes < 4096
            || limits.scratch_inodes < 16
        {
            return Err(Error::invalid(
                "limits",
                "nothing runs with fewer than 2 processes, 4 descriptors, 4,096 bytes and 16 files",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_profile_that_fits_counts() {
        let with = |network| ServerProfile {
            network,
            ..ServerProfile::default()
        };
        let which = |args: &[&str]| ServerMatch {
            executable: "/usr/bin/python3".into(),
            args: args.iter().map(|word| (*word).to_owned()).collect(),
        };
        let settings = LauncherSettings {
            profiles: vec![(which(&["-m", "fetch"]), with(true)), (which(&[]), with(false))],
            profile: with(true),
            ..LauncherSettings::default()
        };
        let network = |executable: &str, args: &[&str]| {
            let launch = Launch {
                executable: executable.into(),
                args: args.iter().map(|word| (*word).to_owned()).collect(),
                env: Default::default(),
            };
            settings.profile_of(&launch).network
        };
        assert!(network("/usr/bin/python3", &["-m", "fetch", "--verbose"]));
        assert!(!network("/usr/bin/python3", &["-m", "fetched"]));
        assert!(!network("/usr/bin/python3", &["-m"]));
        assert!(network("/usr/bin/python3.11", &["-m"]));
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let refused = |change: fn(&mut LauncherSettings)| {
            let mut settings = LauncherSettings::default();
            assert!(settings.check().is_ok());
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(refused(|settings| settings.children = 0).contains("children"));
        assert!(refused(|settings| settings.first_uid = u32::MAX - 10).contains("first_uid"));
        assert!(refused(|settings| settings.first_uid = 0).contains("first_uid"));
        assert!(refused(|settings| settings.profile.user = Some(0)).contains("user"));
        assert!(refused(|settings| settings.profile.readable = vec!["relative".into()]).contains("readable"));
        assert!(refused(|settings| settings.profile.writable = vec!["/".into()]).contains("writable"));
        assert!(refused(|settings| settings.profile.limits.processes = 1).contains("limits"));
    }
}
