"""Attacks on other processes: rows 13 to 22."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

from attempt import WON, WORKS, attempts, entries, forked, libc, mark, reaches, syscall, told
import errno


def _read(path, size=64):
    with open(path, "rb") as file:
        return file.read(size)


def read_processes(host):
    victim = host["victim"]

    def memory(pid):
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))

    def any_foreign_environment():
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    if host["secret"].encode() in _read(f"/proc/{entry}/environ", 1 << 20):
                        return True
                except OSError:
                    pass
        return False

    return attempts(
        environment=lambda: _read(f"/proc/{victim}/environ"),
        memory=lambda: memory(victim),
        maps=lambda: _read(f"/proc/{victim}/maps"),
        descriptors=lambda: os.listdir(f"/proc/{victim}/fd"),
        any_environment=any_foreign_environment,
        parent_memory=lambda: memory(os.getppid() or -1),
    )


def trace(host):
    victim = host["victim"]
    PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
    target = ctypes.c_char_p(b"x" * 8)

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    local = Vector(ctypes.cast(target, ctypes.c_void_p), 8)
    remote = Vector(None, 8)

    def seize():
        syscall("ptrace", PTRACE_SEIZE, victim, 0, 0)
        os.kill(victim, signal.SIGSTOP)
        os.waitpid(victim, 0x40000000)
        syscall("ptrace", PTRACE_DETACH, victim, 0, 0)
        os.kill(victim, signal.SIGCONT)

    def memory(call):
        # Address 0 is nobody's: the kernel says so only to who may look.
        return reaches(call, victim, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0, by=[errno.EFAULT])

    def descriptor():
        process = syscall("pidfd_open", victim, 0)
        os.close(syscall("pidfd_getfd", process, 0, 0))

    return attempts(
        read_memory=lambda: memory("process_vm_readv"),
        write_memory=lambda: memory("process_vm_writev"),
        take_descriptor=descriptor,
        compare=lambda: syscall("kcmp", victim, victim, 1, 0, 0),
        seize=seize,
    )


def send_signals(host):
    """Signals that do nothing to who does not wait for them; the victim does."""
    victim = host["victim"]
    return attempts(
        to_victim=lambda: os.kill(victim, signal.SIGWINCH),
        to_its_group=lambda: os.killpg(host["victim_group"], 0),
        through_descriptor=lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGWINCH),
        thread=lambda: libc_tgkill(victim),
    )


def libc_tgkill(pid):
    number = 234 if os.uname().machine == "x86_64" else 131
    return syscall(number, pid, pid, signal.SIGWINCH)


def signal_everybody(host):
    """Reaches whoever may be reached."""
    for sent in (signal.SIGWINCH,):
        try:
            os.kill(-1, sent)
        except OSError:
            pass
    return {"sent": WORKS}


def kill_everybody(host):
    """Ends whoever may be ended, itself left out."""
    try:
        os.kill(-1, signal.SIGKILL)
    except OSError:
        pass
    return {"sent": WORKS}


def change_limits(host):
    victim = host["victim"]
    SCHED_BATCH, PRIO_PROCESS, PRIO_USER = 3, 0, 2

    def lower(pid):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))

    return attempts(
        lower_limits=lambda: lower(victim),
        raise_nice=lambda: os.setpriority(PRIO_PROCESS, victim, os.nice(0) + 1),
        scheduler=lambda: os.sched_setscheduler(victim, SCHED_BATCH, os.sched_param(0)),
        processors=lambda: os.sched_setaffinity(victim, os.sched_getaffinity(victim)),
        io_priority=lambda: syscall("ioprio_set", 1, victim, (3 << 13) | 7),
        nice_of_user=lambda: _nice_of_user(PRIO_USER),
    )


def _nice_of_user(which):
    os.setpriority(which, os.getuid(), os.nice(0) + 2)


def list_processes(host):
    """Looks for processes that are neither this one, nor above it in its own tree."""
    def named():
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if host["secret"].encode() in _read(f"/proc/{entry}/cmdline", 4096):
                        return True
                except OSError:
                    pass
        return False

    def signalled():
        return any(_exists(pid) for pid in range(host["first_pid"], host["first_pid"] + 4096))

    def visible():
        # In the folder it may stand under its number in a namespace above.
        own = {os.getpid(), os.getppid(), 1, int(os.readlink("/proc/self"))}
        return bool({int(entry) for entry in os.listdir("/proc") if entry.isdigit()} - own)

    return attempts(by_name=named, by_signal=signalled, by_folder=visible)


def _exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def fork_bomb(host):
    """As many children as it gets, at most `count`, and leaves them running."""
    mark()
    made = 0
    problem = "nothing"
    for _ in range(host["count"]):
        try:
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
            made += 1
        except OSError as error:
            problem = errno.errorcode[error.errno]
            break
    return {"unbounded": WON if made >= host["count"] else problem, "_made": str(made)}


def daemon(host):
    """Leaves a process behind that has nothing to do with its parent any more."""
    def detached():
        mark()
        os.setsid()
        for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        os.chdir("/")
        for descriptor in range(256):
            try:
                os.close(descriptor)
            except OSError:
                pass
        time.sleep(600)

    os.waitpid(forked(detached), 0)
    return {"result": WORKS}


def daemon_with_output(host):
    """Leaves a process behind that holds standard output open."""
    def holding():
        mark()
        os.setsid()
        time.sleep(600)

    forked(holding)
    return {"result": WORKS}


def thread_bomb(host):
    made = 0
    waiting = threading.Event()
    threading.stack_size(65536)
    problem = "nothing"
    threads = []
    try:
        for _ in range(host["count"]):
            thread = threading.Thread(target=waiting.wait, daemon=True)
            thread.start()
            threads.append(thread)
            made += 1
    except (RuntimeError, MemoryError) as error:
        problem = type(error).__name__
    waiting.set()
    return {"unbounded": WON if made >= host["count"] else problem, "_made": str(made)}


def set_user_id(host):
    """A set-user-ID copy of `id` is in a folder that the tool may see."""
    own = os.geteuid()

    def gained():
        folders = [os.path.dirname(host["set_user_id"]), *sys.path]
        programs = [os.path.join(folder, "id") for folder in folders]
        program = next(filter(os.path.exists, programs), None)
        if program is None:
            return False
        answer = subprocess.run([program, "-u"], capture_output=True, text=True, timeout=20, check=False)
        return answer.stdout.strip() not in ("", str(own))

    def become():
        os.setuid(0)

    found = attempts(program=gained, user=become, group=lambda: os.setgroups([0]))
    found["identity"] = WORKS if os.geteuid() == own else "changed"
    return found


def sibling(host):
    """Two calls of the same tool at once: one holds something, the other one looks for it."""
    if host["role"] == "hold":
        signals = []
        signal.signal(signal.SIGWINCH, lambda *_: signals.append(1))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with open("held", "w") as file:
            file.write(host["secret"])
        until = time.monotonic() + host["seconds"]
        while time.monotonic() < until:
            time.sleep(0.01)
        with open("held") as file:
            is_whole = file.read() == host["secret"] and os.listdir(".") == ["held"]
        return {
            "file": WORKS if is_whole else "changed",
            "signals": "nothing" if not signals else WON,
            "limits": WORKS if resource.getrlimit(resource.RLIMIT_NOFILE) == limits else "changed",
        }

    own = os.getcwd()
    found = {}

    def folders():
        places = [os.path.dirname(own), "/scratch", "/tmp", "/dev/shm"]
        for place in places:
            try:
                names = os.listdir(place)
            except OSError:
                names = map(str, range(16))
            for name in names:
                folder = os.path.join(place, name)
                if folder != own:
                    yield folder

    def reached(reach):
        for folder in folders():
            try:
                reach(folder)
                return True
            except OSError:
                pass
        return False

    found["list"] = told(lambda: _holds(folders))
    found["read"] = told(lambda: reached(lambda folder: _read(os.path.join(folder, "held"))))
    found["write"] = told(lambda: reached(lambda folder: os.close(os.open(os.path.join(folder, "held"), os.O_WRONLY))))
    found["create"] = told(lambda: reached(_create))
    others = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()} - {os.getpid()}
    for pid in (others | set(range(2, 64))) - {os.getpid()}:
        _signalled(pid)
    return found


def _holds(folders):
    for folder in folders():
        try:
            if "held" in os.listdir(folder):
                return True
        except OSError:
            pass
    return False


def _create(folder):
    os.stat(os.path.join(folder, "held"))
    with open(os.path.join(folder, "foreign"), "w"):
        pass


def _signalled(pid):
    try:
        os.kill(pid, signal.SIGWINCH)
    except OSError:
        return False
    return True


def attack_parents(host):
    """What a child can do to the process that it was forked from, and to the folder they share."""
    parent = os.getppid()
    found = {}
    for name, target in (("parent", parent), ("init", 1)):
        if target > 0:
            found[f"limits_of_{name}"] = told(lambda: resource.prlimit(target, resource.RLIMIT_NOFILE, (16, 16)))
            found[f"signal_{name}"] = told(lambda: os.kill(target, signal.SIGKILL))
    for descriptor in range(3, 256):
        try:
            if descriptor != host.get("call_descriptor", 3):
                os.write(descriptor, b"\0" * 64)
                found["foreign_socket"] = WON
        except OSError:
            pass
    filler = 0
    for folder in (os.getcwd(), "/tmp", "/dev/shm"):
        try:
            with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
                while filler < (256 << 20):
                    filler += file.write(b"\0" * (1 << 20))
        except OSError:
            pass
    return {"survived": WORKS, "_found": repr(found)}


entries(globals())
