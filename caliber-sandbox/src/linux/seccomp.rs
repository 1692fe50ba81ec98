//! System call filters: lists of what is allowed.
//!
//! A list of what is refused would let through every call that a later kernel adds, and x32 numbers; all that is not in
//! these lists fails with `ENOSYS`. A call of another architecture kills the process.

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::confinement::SeccompProfile;

/// The flags of `clone` and `unshare` that make namespaces. `CLONE_NEWTIME` shares its bit with the exit signal of
/// `clone`, which therefore cannot take it.
const NAMESPACE_FLAGS: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32 as u64;

/// The namespaces of a call that is forked from a process with an imported module.
pub(crate) const CALL_NAMESPACES: u64 = (libc::CLONE_NEWUSER | libc::CLONE_NEWPID) as u64;

/// The types of sockets in a pair that cannot be turned to another peer, and the bits that say the type.
const PAIR_TYPES: [u64; 2] = [libc::SOCK_STREAM as u64, libc::SOCK_SEQPACKET as u64];
const SOCKET_TYPE_BITS: u64 = 0xf;

/// `prctl` operations that say something about the caller alone and weaken nothing.
const PROCESS_OPERATIONS: [i32; 11] = [
    libc::PR_GET_PDEATHSIG,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_DUMPABLE,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_GET_SECCOMP,
    libc::PR_CAPBSET_READ,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_SET_VMA,
    libc::PR_GET_TIMERSLACK,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The compiled filter of a profile.
pub(crate) fn compile(profile: SeccompProfile) -> Result<BpfProgram, Errno> {
    rules(profile)
        .and_then(|rules| {
            let refused = SeccompAction::Errno(libc::ENOSYS as u32);
            finish(rules, refused, SeccompAction::Allow)
        })
        .map_err(|_| Errno::INVAL)
}

/// The filter that a call adds to that of the process it was forked from: no namespaces, no further layers.
pub(crate) fn compile_call_layer() -> Result<BpfProgram, Errno> {
    let build = || {
        let mut rules = Rules::new();
        let flags = (0..32).map(|bit| 1 << bit);
        let namespaces = flags.filter(|flag| NAMESPACE_FLAGS & flag != 0);
        let clone = namespaces.map(|flag| rule(&[masked(0, flag, flag)?]));
        rules.insert(libc::SYS_clone, clone.collect::<Result<_, _>>()?);
        for number in LAYER_CALLS {
            rules.insert(*number, Vec::new());
        }
        let refused = SeccompAction::Errno(libc::ENOSYS as u32);
        finish(rules, SeccompAction::Allow, refused)
    };
    build().map_err(|_: seccompiler::BackendError| Errno::INVAL)
}

fn finish(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, matched, architecture)?.try_into()
}

fn rules(profile: SeccompProfile) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = ALWAYS
        .iter()
        .chain(OLD_NAMES)
        .map(|number| (*number, Vec::new()))
        .collect();

    // A thread or a process, but no namespace: `clone3` hides its flags behind a pointer and is refused.
    let mut clone = vec![rule(&[masked(0, NAMESPACE_FLAGS, 0)?])?];
    if profile == SeccompProfile::Zygote {
        clone.push(rule(&[masked(0, NAMESPACE_FLAGS, CALL_NAMESPACES)?])?);
        rules.extend(LAYER_CALLS.iter().map(|number| (*number, Vec::new())));
    }
    rules.insert(libc::SYS_clone, clone);

    // Nothing that is about another process.
    for number in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
    ] {
        rules.insert(number, vec![rule(&[equal(0, 0)?])?]);
    }

    // Terminals: no typing into one, no console. The kernel looks at 32 bits of the command.
    rules.insert(
        libc::SYS_ioctl,
        vec![rule(&[differs(1, libc::TIOCSTI)?, differs(1, libc::TIOCLINUX)?])?],
    );

    let mut operations = PROCESS_OPERATIONS
        .iter()
        .map(|operation| rule(&[equal(0, *operation as u64)?]))
        .collect::<Result<Vec<_>, _>>()?;

    match profile {
        SeccompProfile::Tool | SeccompProfile::Zygote => {
            // Pairs whose ends cannot be connected elsewhere: a datagram socket could.
            let pairs = PAIR_TYPES
                .iter()
                .map(|kind| {
                    rule(&[
                        equal(0, libc::AF_UNIX as u64)?,
                        masked(1, SOCKET_TYPE_BITS, *kind)?,
                    ])
                })
                .collect::<Result<_, _>>()?;
            rules.insert(libc::SYS_socketpair, pairs);
        }
        SeccompProfile::Server { network } => {
            operations.push(rule(&[equal(0, libc::PR_SET_PDEATHSIG as u64)?])?);
            rules.extend(SERVER.iter().map(|number| (*number, Vec::new())));
            let families: &[i32] = if network {
                &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]
            } else {
                &[libc::AF_UNIX]
            };
            let sockets = families
                .iter()
                .map(|family| rule(&[equal(0, *family as u64)?]))
                .collect::<Result<Vec<_>, _>>()?;
            rules.insert(libc::SYS_socket, sockets);
            rules.insert(
                libc::SYS_socketpair,
                vec![rule(&[equal(0, libc::AF_UNIX as u64)?])?],
            );
        }
    }
    rules.insert(libc::SYS_prctl, operations);
    Ok(rules)
}

fn rule(conditions: &[SeccompCondition]) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(conditions.to_vec())
}

fn equal(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn differs(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(mask),
        value,
    )
}

/// Adding layers to oneself.
const LAYER_CALLS: &[i64] = &[
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_seccomp,
];

/// What every program needs. Not in here, beside the obvious: sockets, `io_uring`, `ptrace` and `process_vm_*`, keys,
/// System V objects and message queues, `bpf`, `perf`, `userfaultfd`, handles, clocks, priorities, mounts.
const ALWAYS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_chdir,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_getcpu,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getitimer,
    libc::SYS_getpgid,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_get_robust_list,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_getxattr,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_kill,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mkdirat,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pipe2,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pselect6,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_renameat2,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_sched_yield,
    libc::SYS_sendfile,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setitimer,
    libc::SYS_setpgid,
    libc::SYS_set_robust_list,
    libc::SYS_setsid,
    libc::SYS_setsockopt,
    libc::SYS_set_tid_address,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_sysinfo,
    libc::SYS_tee,
    libc::SYS_tgkill,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_times,
    libc::SYS_tkill,
    libc::SYS_truncate,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_vmsplice,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Older names that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD_NAMES: &[i64] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_futimesat,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_inotify_init,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_NAMES: &[i64] = &[libc::SYS_renameat];

/// What servers need besides: sockets of the families that their profile allows, and giving up privileges.
const SERVER: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_listen,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_seccomp,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setuid,
];

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILES: [SeccompProfile; 4] = [
        SeccompProfile::Tool,
        SeccompProfile::Zygote,
        SeccompProfile::Server { network: false },
        SeccompProfile::Server { network: true },
    ];

    #[test]
    fn every_profile_compiles_within_the_limit_of_the_kernel() {
        for profile in PROFILES {
            let program = compile(profile).unwrap();
            assert!(
                (100..4096).contains(&program.len()),
                "{profile:?}: {}",
                program.len()
            );
        }
        assert!(!compile_call_layer().unwrap().is_empty());
    }

    /// Interprets a program as the kernel does; the few instructions that the compiler makes.
    fn verdict(program: &[seccompiler::sock_filter], number: i64, arguments: [u64; 6]) -> u32 {
        let architecture: u32 = if cfg!(target_arch = "x86_64") {
            0xc000_003e
        } else {
            0xc000_00b7
        };
        let mut data = Vec::new();
        data.extend((number as i32).to_ne_bytes());
        data.extend(architecture.to_ne_bytes());
        data.extend(0_u64.to_ne_bytes());
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let step = &program[at];
            at += 1;
            let k = step.k;
            match step.code {
                0x20 => {
                    accumulator = u32::from_ne_bytes(data[k as usize..k as usize + 4].try_into().unwrap())
                }
                0x54 => accumulator &= k,
                0x05 => at += k as usize,
                0x15 => at += usize::from(if accumulator == k { step.jt } else { step.jf }),
                0x25 => at += usize::from(if accumulator > k { step.jt } else { step.jf }),
                0x35 => at += usize::from(if accumulator >= k { step.jt } else { step.jf }),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    const ALLOWED: u32 = 0x7fff_0000;
    const REFUSED: u32 = 0x0005_0000 | libc::ENOSYS as u32;

    #[test]
    fn what_is_dangerous_is_in_no_profile_of_tools() {
        for profile in [SeccompProfile::Tool, SeccompProfile::Zygote] {
            let program = compile(profile).unwrap();
            let call = |number, first| verdict(&program, number, [first, 0, 0, 0, 0, 0]);
            for number in [
                libc::SYS_socket,
                libc::SYS_connect,
                libc::SYS_bind,
                libc::SYS_mount,
                libc::SYS_unshare,
                libc::SYS_setns,
                libc::SYS_clone3,
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_pidfd_getfd,
                libc::SYS_kcmp,
                libc::SYS_keyctl,
                libc::SYS_bpf,
                libc::SYS_perf_event_open,
                libc::SYS_userfaultfd,
                libc::SYS_io_uring_setup,
                libc::SYS_shmget,
                libc::SYS_mq_open,
                libc::SYS_open_by_handle_at,
                libc::SYS_clock_settime,
                libc::SYS_personality,
                libc::SYS_setpriority,
                libc::SYS_ioprio_set,
                libc::SYS_chroot,
                libc::SYS_sethostname,
            ] {
                assert_eq!(call(number, 0), REFUSED, "{profile:?} lets {number} through");
            }
            // Numbers of x32, and those of later kernels.
            assert_eq!(call(libc::SYS_read | 0x4000_0000, 0), REFUSED);
            assert_eq!(call(4000, 0), REFUSED);
            assert_eq!(call(libc::SYS_prlimit64, 0), ALLOWED);
            assert_eq!(call(libc::SYS_prlimit64, 77), REFUSED);
            assert_eq!(call(libc::SYS_clone, libc::SIGCHLD as u64), ALLOWED);
            assert_eq!(call(libc::SYS_clone, libc::CLONE_NEWNS as u64), REFUSED);
            assert_eq!(call(libc::SYS_read, 0), ALLOWED);
            // It would outlive a caller that is killed.
            assert_eq!(call(libc::SYS_prctl, libc::PR_SET_PDEATHSIG as u64), REFUSED);
            assert_eq!(call(libc::SYS_prctl, libc::PR_GET_PDEATHSIG as u64), ALLOWED);
        }
    }

    #[test]
    fn only_a_zygote_makes_the_namespaces_of_a_call() {
        let flags = [CALL_NAMESPACES | libc::SIGCHLD as u64, 0, 0, 0, 0, 0];
        let verdict_of = |profile| verdict(&compile(profile).unwrap(), libc::SYS_clone, flags);
        assert_eq!(verdict_of(SeccompProfile::Zygote), ALLOWED);
        assert_eq!(verdict_of(SeccompProfile::Tool), REFUSED);
        let layer = compile_call_layer().unwrap();
        assert_eq!(verdict(&layer, libc::SYS_clone, flags), REFUSED);
        assert_eq!(
            verdict(&layer, libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]),
            ALLOWED
        );
        assert_eq!(verdict(&layer, libc::SYS_seccomp, [0; 6]), REFUSED);
    }

    #[test]
    fn high_bits_do_not_hide_a_terminal_command() {
        let program = compile(SeccompProfile::Tool).unwrap();
        let ioctl = |command| verdict(&program, libc::SYS_ioctl, [0, command, 0, 0, 0, 0]);
        assert_eq!(ioctl(libc::TIOCSTI | 1 << 32), REFUSED);
        assert_eq!(ioctl(libc::TIOCSTI), REFUSED);
        assert_eq!(ioctl(libc::TIOCLINUX | 1 << 40), REFUSED);
        assert_eq!(ioctl(libc::TCGETS), ALLOWED);
    }

    #[test]
    fn sockets_come_in_pairs_that_stay_pairs() {
        let program = compile(SeccompProfile::Tool).unwrap();
        let pair = |family: i32, kind: i32| {
            verdict(
                &program,
                libc::SYS_socketpair,
                [family as u64, kind as u64, 0, 0, 0, 0],
            )
        };
        assert_eq!(
            pair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC),
            ALLOWED
        );
        assert_eq!(pair(libc::AF_UNIX, libc::SOCK_DGRAM), REFUSED);
        assert_eq!(pair(libc::AF_TIPC, libc::SOCK_STREAM), REFUSED);
        let server = |network, family: i32| {
            let program = compile(SeccompProfile::Server { network }).unwrap();
            verdict(&program, libc::SYS_socket, [family as u64, 0, 0, 0, 0, 0])
        };
        assert_eq!(server(false, libc::AF_INET), REFUSED);
        assert_eq!(server(true, libc::AF_INET), ALLOWED);
        assert_eq!(server(true, libc::AF_VSOCK), REFUSED);
    }
}
