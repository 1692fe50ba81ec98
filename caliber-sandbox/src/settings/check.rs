//! Whether settings can be.

use std::time::Duration;

use caliber_core::{Error, Result};

use super::{Limits, SandboxSettings};

/// The most runs at once that may be configured.
const PLACES: usize = 4096;
/// The most of what is kept ready or waits.
const KEPT: usize = 1 << 20;
/// The longest time that may be configured: an instant that far away can still be told.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// User ids below belong to the accounts of the machine, or are reserved.
const FIRST_FREE_UID: u32 = 1 << 16;

impl SandboxSettings {
    /// Whether these settings can be, for a process of root or of another account.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming the field.
    pub(crate) fn check(&self, is_root: bool) -> Result<()> {
        self.pin.check()?;
        if !self.snapshot_folder.is_absolute() {
            return Err(Error::invalid("snapshot_folder", "must be an absolute path"));
        }
        for (field, count, least, most) in [
            ("places", self.places, 1, PLACES),
            ("queue", self.queue, 0, KEPT),
            ("reflections", self.reflections, 0, KEPT),
            ("zygotes", self.zygotes, 0, PLACES),
            ("spares", self.spares, 0, PLACES),
            ("output_bytes", self.output_bytes, 0, 64 << 20),
        ] {
            if count < least || count > most {
                return Err(Error::invalid(field, format!("must be {least} to {most}")));
            }
        }
        if self.zygote_calls == 0 {
            return Err(Error::invalid("zygote_calls", "must be at least 1"));
        }
        for (field, time, least) in [
            ("timeout", self.timeout, Duration::from_millis(1)),
            ("startup_grace", self.startup_grace, Duration::ZERO),
            ("zygote_idle", self.zygote_idle, Duration::from_millis(1)),
        ] {
            if time < least || time > LONGEST {
                let least = if least.is_zero() { "" } else { "above zero and " };
                return Err(Error::invalid(field, format!("must be {least}at most 30 days")));
            }
        }
        self.limits.check("limits")?;
        self.ceiling.check("ceiling")?;
        if is_root { self.check_ids() } else { Ok(()) }
    }

    fn check_ids(&self) -> Result<()> {
        // The last id means "no change" to the kernel.
        let room = (u32::MAX - 1).saturating_sub(self.first_uid);
        if self.first_uid < FIRST_FREE_UID || room < self.uid_count {
            return Err(Error::invalid(
                "first_uid",
                format!("must be at least {FIRST_FREE_UID} and leave room for uid_count more ids"),
            ));
        }
        let needed = self.needed_ids();
        if (self.uid_count as usize) < needed {
            return Err(Error::invalid(
                "uid_count",
                format!(
                    "must be at least {needed}: two for each place, and for each zygote one and its spares"
                ),
            ));
        }
        Ok(())
    }

    /// As many processes as there may be with an id of their own: those that run a call, those whose call was answered and
    /// that are about to end, and those that wait for one.
    fn needed_ids(&self) -> usize {
        let waiting = self.zygotes.saturating_mul(self.spares.saturating_add(1));
        self.places.saturating_mul(2).saturating_add(waiting)
    }
}

impl Limits {
    fn check(&self, section: &str) -> Result<()> {
        for (field, limit) in [
            ("memory_bytes", self.memory_bytes),
            ("processes", u64::from(self.processes)),
            ("scratch_bytes", self.scratch_bytes),
            ("scratch_inodes", self.scratch_inodes),
            ("open_files", u64::from(self.open_files)),
            ("result_bytes", self.result_bytes),
        ] {
            if limit == 0 {
                return Err(Error::invalid(format!("{section}.{field}"), "must be above zero"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field, and a change that makes it wrong.
    type Wrong = (&'static str, fn(&mut SandboxSettings));

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        assert!(SandboxSettings::default().check(true).is_ok());
        let wrong: [Wrong; 17] = [
            ("snapshot_folder", |settings| {
                settings.snapshot_folder = "here".into()
            }),
            ("places", |settings| settings.places = 0),
            ("places", |settings| settings.places = usize::MAX),
            ("queue", |settings| settings.queue = usize::MAX),
            ("reflections", |settings| settings.reflections = usize::MAX),
            ("zygotes", |settings| settings.zygotes = usize::MAX),
            ("spares", |settings| settings.spares = usize::MAX),
            ("output_bytes", |settings| settings.output_bytes = usize::MAX),
            ("zygote_calls", |settings| settings.zygote_calls = 0),
            ("timeout", |settings| settings.timeout = Duration::ZERO),
            ("timeout", |settings| settings.timeout = Duration::MAX),
            ("startup_grace", |settings| settings.startup_grace = Duration::MAX),
            ("zygote_idle", |settings| settings.zygote_idle = Duration::MAX),
            ("limits.open_files", |settings| settings.limits.open_files = 0),
            ("limits.memory_bytes", |settings| settings.limits.memory_bytes = 0),
            ("ceiling.processes", |settings| settings.ceiling.processes = 0),
            ("pin", |settings| settings.pin.depth = 0),
        ];
        for (field, change) in wrong {
            let mut settings = SandboxSettings::default();
            change(&mut settings);
            let error = settings.check(false).unwrap_err();
            assert!(error.to_string().contains(field), "{field}: {error}");
        }
    }

    #[test]
    fn ids_are_looked_at_where_they_are_given() {
        let wrong: [Wrong; 5] = [
            ("first_uid", |settings| settings.first_uid = 0),
            ("first_uid", |settings| settings.first_uid = 65_535),
            ("first_uid", |settings| settings.first_uid = u32::MAX - 4096),
            ("uid_count", |settings| settings.uid_count = 0),
            // Two for each of 8 places, three for each of 16 zygotes.
            ("uid_count", |settings| settings.uid_count = 63),
        ];
        for (field, change) in wrong {
            let mut settings = SandboxSettings::default();
            change(&mut settings);
            assert!(settings.check(false).is_ok());
            let error = settings.check(true).unwrap_err();
            assert!(error.to_string().contains(field), "{field}: {error}");
        }
        let settings = SandboxSettings {
            uid_count: 64,
            ..SandboxSettings::default()
        };
        assert!(settings.check(true).is_ok());
    }
}
