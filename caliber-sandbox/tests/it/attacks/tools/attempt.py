"""What the attacks share: how an attempt is told, and system calls by number."""

import ctypes
import errno
import os

WON = "won"
WORKS = "works"

#: Numbers of system calls: x86-64, and everything else as in the kernel's generic table.
_NUMBERS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "clone": (56, 220),
    "clone3": (435, 435),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "personality": (135, 92),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
    "memfd_create": (319, 279),
    "execve": (59, 221),
    "execveat": (322, 281),
    "getpid": (39, 172),
}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def is_x86():
    return os.uname().machine == "x86_64"


def syscall(name, *arguments):
    """The result of a system call; what the kernel refuses is raised."""
    number = _NUMBERS[name][0 if is_x86() else 1] if isinstance(name, str) else name
    result = libc.syscall(ctypes.c_long(number), *map(_argument, arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _argument(value):
    return ctypes.c_long(value) if isinstance(value, int) else value


def reaches(name, *arguments, by):
    """Whether the kernel came to look at the arguments, which are wrong in a way that it answers with `by`."""
    try:
        syscall(name, *arguments)
    except OSError as error:
        if error.errno not in by:
            raise
    return True


def told(function):
    """One attempt as a word: won, or what stood against it."""
    try:
        return "nothing" if function() is False else WON
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    except BaseException as error:
        return type(error).__name__


def attempts(**functions):
    return {name: told(function) for name, function in functions.items()}


def mark():
    """Gives this process, and those that it forks, the name that survivors are looked for by."""
    PR_SET_NAME = 15
    libc.prctl(PR_SET_NAME, b"caliber-attack", 0, 0, 0)


def forked(body):
    """A child that runs `body` and ends."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(0)
    return child


def entries(namespace):
    """Lets the callables of a module be called without doing anything, so that a process is there for the real call."""
    for name, function in list(namespace.items()):
        if getattr(function, "__module__", None) == namespace["__name__"] and not name.startswith("_"):
            code = getattr(function, "__code__", None)
            if code is not None and code.co_varnames[: code.co_argcount] == ("host",):
                namespace[name] = _entry(function)


def _entry(function):
    def entry(host):
        return None if host and host.get("warm") else function(host)

    return entry
