//! What the child does between clone and exec.
//!
//! The child is a copy of a process that may have had many threads: any lock may be held by a thread that is not there,
//! the allocator's included. So nothing here allocates, takes a lock, panics or unwinds: raw system calls on memory that
//! was prepared before.

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::ptr;

use super::confinement::Identity;
use super::landlock::Beneath;
use super::prepared::{BINDS, LandlockPlan, Prepared, RootPlan, Step};
use super::spawn::Stage;

/// Where the status pipe is in the child: after the descriptors that the program gets.
const STATUS: RawFd = 4;

/// The descriptors of the caller that the child starts from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    pub(super) stdin: RawFd,
    pub(super) stdout: RawFd,
    pub(super) stderr: RawFd,
    pub(super) channel: Option<RawFd>,
    pub(super) status: RawFd,
    pub(super) cgroups: &'a [RawFd],
}

/// A step that failed: which, why, and which entry it was about.
struct Failure {
    stage: Stage,
    errno: i32,
    entry: u16,
}

/// The bytes of the status pipe: stage, nothing, entry, error.
pub(super) const STATUS_BYTES: usize = 8;

/// An argument of a system call, widened to a whole register.
trait Argument {
    fn register(self) -> usize;
}

macro_rules! argument {
    ($($kind:ty),*) => {
        $(impl Argument for $kind {
            fn register(self) -> usize {
                self as usize
            }
        })*
    };
}
argument!(i32, u32, i64, u64, usize);

impl<T> Argument for *const T {
    fn register(self) -> usize {
        self as usize
    }
}

impl<T> Argument for *mut T {
    fn register(self) -> usize {
        self as usize
    }
}

/// A system call; to be used in an unsafe block.
macro_rules! raw {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        libc::syscall(libc::$number $(, Argument::register($argument))*)
    };
}

/// A system call that must succeed; to be used in an unsafe block.
macro_rules! syscall {
    ($stage:expr, $number:ident $(, $argument:expr)* $(,)?) => {
        check($stage, 0, raw!($number $(, $argument)*))
    };
}

fn errno() -> i32 {
    // SAFETY: the calling thread's own error number; the thread-local storage was copied with everything else.
    unsafe { *libc::__errno_location() }
}

fn check(stage: Stage, entry: u16, answer: libc::c_long) -> Result<libc::c_long, Failure> {
    if answer >= 0 {
        return Ok(answer);
    }
    Err(Failure {
        stage,
        errno: errno(),
        entry,
    })
}

/// The whole life of the child up to its program. Never returns.
///
/// # Safety
///
/// Only in a process that was just made by clone without `CLONE_VM`.
pub(super) unsafe fn run(prepared: &Prepared, start: Start<'_>) -> ! {
    // SAFETY: passed on.
    let failure = match unsafe { confine_and_execute(prepared, start) } {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let mut report = [0_u8; STATUS_BYTES];
    let [stage, _, entry @ .., _, _, _, _] = &mut report;
    *stage = failure.stage as u8;
    *entry = failure.entry.to_ne_bytes();
    let [_, _, _, _, code @ ..] = &mut report;
    *code = failure.errno.to_ne_bytes();
    // The status pipe is at one of two places, by how far the child came.
    let status = if (failure.stage as u8) <= Stage::Session as u8 {
        start.status
    } else {
        STATUS
    };
    // SAFETY: `report` is valid for its length; the process ends here.
    unsafe {
        raw!(SYS_write, status, report.as_ptr(), report.len());
        loop {
            raw!(SYS_exit_group, 127);
        }
    }
}

enum Never {}

unsafe fn confine_and_execute(prepared: &Prepared, start: Start<'_>) -> Result<Never, Failure> {
    // SAFETY: the arguments are plain numbers, or pointers into `prepared` or onto this stack that are valid for as long as
    // the call.
    unsafe {
        for group in start.cgroups {
            syscall!(Stage::Cgroup, SYS_write, *group, c"0".as_ptr(), 1_usize)?;
        }
        if prepared.namespaces.cgroup {
            syscall!(Stage::Cgroup, SYS_unshare, libc::CLONE_NEWCGROUP)?;
        }
        if prepared.session {
            syscall!(Stage::Session, SYS_setsid)?;
        }
        reset_signal_handlers();
        raw!(SYS_umask, 0o022);
        arrange_descriptors(start)?;

        if let Some((users, groups)) = &prepared.user_maps {
            write_file(Stage::UserMap, c"/proc/self/setgroups", b"deny")?;
            write_file(Stage::UserMap, c"/proc/self/uid_map", users.to_bytes())?;
            write_file(Stage::UserMap, c"/proc/self/gid_map", groups.to_bytes())?;
        }
        if prepared.namespaces.mount {
            let all = (libc::MS_REC | libc::MS_PRIVATE) as libc::c_ulong;
            let none = ptr::null::<libc::c_char>();
            syscall!(
                Stage::MountPrivate,
                SYS_mount,
                none,
                c"/".as_ptr(),
                none,
                all,
                none
            )?;
        }
        if let Some(root) = &prepared.root {
            enter_root(root)?;
        }
        if prepared.namespaces.uts {
            let name = c"sandbox";
            syscall!(
                Stage::HostName,
                SYS_sethostname,
                name.as_ptr(),
                name.count_bytes()
            )?;
        }

        if prepared.drops_bounding_set {
            drop_bounding_set()?;
        }
        if let Identity::Other { id } = prepared.identity {
            syscall!(
                Stage::Identity,
                SYS_setgroups,
                0_usize,
                ptr::null::<libc::gid_t>()
            )?;
            syscall!(Stage::Identity, SYS_setresgid, id, id, id)?;
            syscall!(Stage::Identity, SYS_setresuid, id, id, id)?;
        }
        drop_capabilities()?;
        for (resource, value) in &prepared.limits {
            let limit = libc::rlimit64 {
                rlim_cur: *value,
                rlim_max: *value,
            };
            let none = ptr::null_mut::<libc::rlimit64>();
            syscall!(Stage::Limits, SYS_prlimit64, 0, *resource, &raw const limit, none)?;
        }
        syscall!(
            Stage::Descriptors,
            SYS_close_range,
            STATUS + 1,
            libc::c_uint::MAX,
            0
        )?;
        syscall!(Stage::Directory, SYS_chdir, prepared.directory.as_ptr())?;
        syscall!(
            Stage::NoNewPrivileges,
            SYS_prctl,
            libc::PR_SET_NO_NEW_PRIVS,
            1,
            0,
            0,
            0
        )?;
        if let Some(rules) = &prepared.landlock {
            restrict_files(rules)?;
        }

        // Changing users forgets the signal, so it is set here, and whether the caller is still there is looked at after.
        syscall!(
            Stage::Session,
            SYS_prctl,
            libc::PR_SET_PDEATHSIG,
            libc::SIGKILL,
            0,
            0,
            0
        )?;
        let mut reader = libc::pollfd {
            fd: STATUS,
            events: 0,
            revents: 0,
        };
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let no_mask = ptr::null::<libc::c_void>();
        raw!(SYS_ppoll, &raw mut reader, 1, &raw const now, no_mask, 8_usize,);
        if reader.revents & libc::POLLERR != 0 {
            raw!(SYS_exit_group, 127);
        }

        if prepared.init {
            become_init(prepared)?;
        }
        let nothing = 0_u64;
        let none = ptr::null_mut::<u64>();
        raw!(
            SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const nothing,
            none,
            8_usize,
        );
        filter_calls(prepared)?;
        syscall!(
            Stage::Exec,
            SYS_execve,
            prepared.executable.as_ptr(),
            prepared.args.as_ptr(),
            prepared.env.as_ptr(),
        )?;
    }
    Err(Failure {
        stage: Stage::Exec,
        errno: libc::EINVAL,
        entry: 0,
    })
}

/// Also what the host ignores, such as `SIGPIPE`, is not ignored by a program that was just started.
unsafe fn reset_signal_handlers() {
    // The kernel's structure: handler, flags, restorer, mask; all zero is the default action.
    let default = [0_u64; 4];
    let none = ptr::null_mut::<libc::c_void>();
    for signal in 1..=64 {
        // SAFETY: `default` is as long as the structure of every 64-bit architecture. SIGKILL and SIGSTOP answer an error.
        unsafe {
            raw!(SYS_rt_sigaction, signal, default.as_ptr(), none, 8_usize);
        }
    }
}

/// Puts the five descriptors to 0 to 4 and closes all others.
unsafe fn arrange_descriptors(start: Start<'_>) -> Result<(), Failure> {
    const STAGE: Stage = Stage::Session;
    // Out of the way first: any of them may sit where another one belongs.
    // SAFETY: plain numbers.
    let away = |descriptor: RawFd| unsafe { syscall!(STAGE, SYS_fcntl, descriptor, libc::F_DUPFD, 16) };
    let stdin = away(start.stdin)?;
    let stdout = away(start.stdout)?;
    let stderr = away(start.stderr)?;
    let status = away(start.status)?;
    let channel = match start.channel {
        Some(channel) => Some(away(channel)?),
        None => None,
    };
    // SAFETY: plain numbers.
    unsafe {
        syscall!(STAGE, SYS_dup3, stdin, 0, 0)?;
        syscall!(STAGE, SYS_dup3, stdout, 1, 0)?;
        syscall!(STAGE, SYS_dup3, stderr, 2, 0)?;
        match channel {
            Some(channel) => {
                syscall!(STAGE, SYS_dup3, channel, 3, 0)?;
            }
            None => {
                raw!(SYS_close, 3);
            }
        }
        // From here on a failure is reported there.
        syscall!(STAGE, SYS_dup3, status, STATUS, libc::O_CLOEXEC)?;
        syscall!(
            Stage::Descriptors,
            SYS_close_range,
            STATUS + 1,
            libc::c_uint::MAX,
            0
        )?;
    }
    Ok(())
}

unsafe fn write_file(stage: Stage, path: &CStr, content: &[u8]) -> Result<(), Failure> {
    // SAFETY: the path ends with a zero, the content is valid for its length.
    unsafe {
        let file = syscall!(
            stage,
            SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC
        )?;
        let written = syscall!(stage, SYS_write, file, content.as_ptr(), content.len());
        raw!(SYS_close, file);
        written.map(|_| ())
    }
}

/// `struct open_how` of `openat2`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `struct mount_attr` of `mount_setattr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const RESOLVE_NO_SYMLINKS: u64 = 0x04;
const OPEN_TREE_CLONE: libc::c_uint = 1;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_NOEXEC: u64 = 8;

/// Builds the private root and makes it the only file tree there is.
unsafe fn enter_root(plan: &RootPlan) -> Result<(), Failure> {
    let mut trees: [RawFd; BINDS] = [-1; BINDS];
    // SAFETY: strings of the plan end with a zero; structures live on this stack.
    unsafe {
        // The trees are taken while the host's paths are still there.
        for (source, tree) in plan.sources.iter().zip(trees.iter_mut()) {
            *tree = take_tree(source)?;
        }

        let no_execution = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
        let root = file_system(
            (Stage::MountRoot, 0),
            c"tmpfs",
            &[(c"size", c"1048576"), (c"nr_inodes", c"4096"), (c"mode", c"0755")],
            MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
        )?;
        attach((Stage::MountRoot, 0), root, c"/")?;
        syscall!(Stage::MountRoot, SYS_fchdir, root)?;

        for step in &plan.steps {
            match step {
                Step::Folder { target, entry } => {
                    let made = raw!(SYS_mkdirat, libc::AT_FDCWD, target.as_ptr(), 0o755);
                    if made < 0 && errno() != libc::EEXIST {
                        check(Stage::MountRoot, *entry, made)?;
                    }
                }
                Step::File { target, entry } => {
                    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
                    let file = raw!(SYS_openat, libc::AT_FDCWD, target.as_ptr(), flags, 0o444);
                    check(Stage::MountRoot, *entry, file)?;
                    raw!(SYS_close, file);
                }
                Step::Attach { source, target } => {
                    let (Some(tree), Some(source)) = (trees.get(*source), plan.sources.get(*source)) else {
                        continue;
                    };
                    let stage = if source.is_device {
                        Stage::MountDevice
                    } else {
                        Stage::MountBind
                    };
                    attach((stage, source.entry), *tree, target)?;
                    raw!(SYS_close, *tree);
                }
                Step::Tmpfs {
                    target,
                    size,
                    inodes,
                    owner,
                    entry,
                } => {
                    let at = (Stage::MountTmpfs, *entry);
                    let options: [(&CStr, &CStr); 5] = [
                        (c"size", size),
                        (c"nr_inodes", inodes),
                        (c"mode", c"0700"),
                        (c"uid", owner),
                        (c"gid", owner),
                    ];
                    let memory = file_system(at, c"tmpfs", &options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)?;
                    attach(at, memory, target)?;
                    raw!(SYS_close, memory);
                }
                Step::Proc { target, entry } => {
                    let at = (Stage::MountProc, *entry);
                    let processes = file_system(at, c"proc", &[(c"hidepid", c"ptraceable")], no_execution)?;
                    attach(at, processes, target)?;
                    raw!(SYS_close, processes);
                }
                Step::Symlink {
                    target,
                    content,
                    entry,
                } => {
                    let made = raw!(SYS_symlinkat, content.as_ptr(), libc::AT_FDCWD, target.as_ptr(),);
                    check(Stage::MountRoot, *entry, made)?;
                }
            }
        }

        let read_only = MountAttributes {
            set: MOUNT_ATTR_RDONLY,
            clear: 0,
            propagation: 0,
            user_namespace: 0,
        };
        syscall!(
            Stage::MountRoot,
            SYS_mount_setattr,
            root,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const read_only,
            size_of::<MountAttributes>(),
        )?;
        // The old root is put over the new one and taken off from there: no folder is needed for it.
        syscall!(Stage::PivotRoot, SYS_pivot_root, c".".as_ptr(), c".".as_ptr())?;
        syscall!(Stage::PivotRoot, SYS_umount2, c".".as_ptr(), libc::MNT_DETACH)?;
        syscall!(Stage::PivotRoot, SYS_chdir, c"/".as_ptr())?;
        raw!(SYS_close, root);
    }
    Ok(())
}

/// A copy of the mounts at `source`, attached nowhere, with its flags set.
unsafe fn take_tree(source: &super::prepared::Source) -> Result<RawFd, Failure> {
    let stage = if source.is_device {
        Stage::MountDevice
    } else {
        Stage::MountBind
    };
    let entry = source.entry;
    let how = OpenHow {
        flags: (libc::O_PATH | libc::O_CLOEXEC) as u64,
        mode: 0,
        resolve: RESOLVE_NO_SYMLINKS,
    };
    // SAFETY: the path ends with a zero; the structures live on this stack and are passed with their size.
    unsafe {
        let opened = check(
            stage,
            entry,
            raw!(
                SYS_openat2,
                libc::AT_FDCWD,
                source.path.as_ptr(),
                &raw const how,
                size_of::<OpenHow>(),
            ),
        )?;
        let mut facts: libc::stat = std::mem::zeroed();
        check(
            stage,
            entry,
            raw!(
                SYS_newfstatat,
                opened,
                c"".as_ptr(),
                &raw mut facts,
                libc::AT_EMPTY_PATH,
            ),
        )?;
        if facts.st_dev != source.device || facts.st_ino != source.inode {
            return Err(Failure {
                stage,
                errno: libc::ESTALE,
                entry,
            });
        }
        let flags = OPEN_TREE_CLONE
            | libc::O_CLOEXEC as libc::c_uint
            | libc::AT_EMPTY_PATH as libc::c_uint
            | libc::AT_RECURSIVE as libc::c_uint;
        let tree = check(stage, entry, raw!(SYS_open_tree, opened, c"".as_ptr(), flags))?;
        let mut set = MOUNT_ATTR_NOSUID;
        if source.is_device {
            set |= MOUNT_ATTR_NOEXEC;
        } else {
            set |= MOUNT_ATTR_NODEV;
        }
        if !source.writable {
            set |= MOUNT_ATTR_RDONLY;
        }
        let attributes = MountAttributes {
            set,
            clear: 0,
            propagation: 0,
            user_namespace: 0,
        };
        check(
            stage,
            entry,
            raw!(
                SYS_mount_setattr,
                tree,
                c"".as_ptr(),
                libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
                &raw const attributes,
                size_of::<MountAttributes>(),
            ),
        )?;
        raw!(SYS_close, opened);
        Ok(tree as RawFd)
    }
}

/// A new file system, attached nowhere.
unsafe fn file_system(
    (stage, entry): (Stage, u16),
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: u64,
) -> Result<RawFd, Failure> {
    // SAFETY: all strings end with a zero.
    unsafe {
        let context = check(stage, entry, raw!(SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC))?;
        for (key, value) in options {
            let set = raw!(
                SYS_fsconfig,
                context,
                FSCONFIG_SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            );
            check(stage, entry, set)?;
        }
        let none = ptr::null::<libc::c_char>();
        let made = raw!(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, none, none, 0);
        check(stage, entry, made)?;
        let mount = raw!(SYS_fsmount, context, FSMOUNT_CLOEXEC, attributes);
        let mount = check(stage, entry, mount)?;
        raw!(SYS_close, context);
        Ok(mount as RawFd)
    }
}

unsafe fn attach((stage, entry): (Stage, u16), mount: RawFd, target: &CStr) -> Result<(), Failure> {
    // SAFETY: both strings end with a zero.
    let moved = unsafe {
        raw!(
            SYS_move_mount,
            mount,
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    check(stage, entry, moved).map(|_| ())
}

unsafe fn drop_bounding_set() -> Result<(), Failure> {
    for capability in 0..64 {
        // SAFETY: plain numbers.
        let dropped = unsafe { raw!(SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if dropped < 0 {
            // The first number that is no capability.
            if errno() == libc::EINVAL && capability > 0 {
                break;
            }
            check(Stage::Capabilities, 0, dropped)?;
        }
    }
    Ok(())
}

unsafe fn drop_capabilities() -> Result<(), Failure> {
    /// `_LINUX_CAPABILITY_VERSION_3`.
    const VERSION: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION, 0];
    let none = [0_u32; 6];
    // SAFETY: header and data have the form of that version.
    unsafe {
        syscall!(Stage::Capabilities, SYS_capset, header.as_ptr(), none.as_ptr())?;
    }
    Ok(())
}

unsafe fn restrict_files(plan: &LandlockPlan) -> Result<(), Failure> {
    // SAFETY: structures live on this stack and in the plan; the size is that of what this version reads.
    unsafe {
        let ruleset = syscall!(
            Stage::Landlock,
            SYS_landlock_create_ruleset,
            &raw const plan.rights.ruleset,
            plan.rights.ruleset_size,
            0,
        )?;
        for (number, (path, allowed)) in plan.rules.iter().enumerate() {
            let number = number as u16;
            let flags = libc::O_PATH | libc::O_CLOEXEC;
            let parent = raw!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
            let parent = check(Stage::Landlock, number, parent)?;
            let mut facts: libc::stat = std::mem::zeroed();
            let empty = c"".as_ptr();
            let seen = raw!(SYS_newfstatat, parent, empty, &raw mut facts, libc::AT_EMPTY_PATH,);
            check(Stage::Landlock, number, seen)?;
            let is_folder = facts.st_mode & libc::S_IFMT == libc::S_IFDIR;
            let rule = Beneath {
                allowed: if is_folder {
                    *allowed
                } else {
                    *allowed & plan.rights.file
                },
                parent: parent as i32,
            };
            const PATH_BENEATH: libc::c_int = 1;
            let added = raw!(SYS_landlock_add_rule, ruleset, PATH_BENEATH, &raw const rule, 0,);
            check(Stage::Landlock, number, added)?;
            raw!(SYS_close, parent);
        }
        syscall!(Stage::Landlock, SYS_landlock_restrict_self, ruleset, 0)?;
        raw!(SYS_close, ruleset);
    }
    Ok(())
}

unsafe fn filter_calls(prepared: &Prepared) -> Result<(), Failure> {
    let Some(filter) = &prepared.filter else {
        return Ok(());
    };
    /// `struct sock_fprog`.
    #[repr(C)]
    struct Program {
        length: libc::c_ushort,
        instructions: *const libc::c_void,
    }
    let program = Program {
        length: filter.len() as libc::c_ushort,
        instructions: filter.as_ptr().cast(),
    };
    // SAFETY: the program points to as many instructions as it says; they are `struct sock_filter`.
    unsafe {
        syscall!(
            Stage::Seccomp,
            SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program
        )?;
    }
    Ok(())
}

/// Stays behind as the first process of the namespace and returns in a second one, which becomes the program.
unsafe fn become_init(prepared: &Prepared) -> Result<(), Failure> {
    // SAFETY: plain numbers; structures live on this stack.
    unsafe {
        // This process never executes anything and so keeps a copy of the caller's memory: nobody may look into it.
        syscall!(Stage::Init, SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0)?;
        let program = syscall!(Stage::Init, SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)?;
        if program == 0 {
            return Ok(());
        }
        raw!(SYS_close_range, 0, libc::c_uint::MAX, 0);
        if filter_calls(prepared).is_err() {
            raw!(SYS_exit_group, 127);
        }
        // All signals are blocked since before clone; a blocked signal reaches the first process of a namespace, too.
        let all = u64::MAX;
        loop {
            let no_information = ptr::null_mut::<libc::c_void>();
            let forever = ptr::null::<libc::timespec>();
            let signal = raw!(
                SYS_rt_sigtimedwait,
                &raw const all,
                no_information,
                forever,
                8_usize,
            );
            if signal > 0 && signal != libc::c_long::from(libc::SIGCHLD) {
                raw!(SYS_kill, program, signal);
                continue;
            }
            loop {
                let mut status: libc::c_int = 0;
                let none = ptr::null_mut::<libc::c_void>();
                let ended = raw!(SYS_wait4, -1, &raw mut status, libc::WNOHANG, none);
                if ended <= 0 {
                    break;
                }
                if ended == program {
                    // As shells say it: a signal is 128 and its number.
                    let code = if libc::WIFSIGNALED(status) {
                        128 + libc::WTERMSIG(status)
                    } else {
                        libc::WEXITSTATUS(status)
                    };
                    raw!(SYS_exit_group, code);
                }
            }
        }
    }
}
