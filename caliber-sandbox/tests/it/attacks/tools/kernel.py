"""Attacks on the surface of the kernel: rows 31 to 38."""

import ctypes
import errno
import mmap
import os
import resource
import socket
import stat
import subprocess
import sys
import threading

from attempt import WON, WORKS, attempts, entries, is_x86, libc, reaches, syscall, told

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, SIGCHLD = 0x10000000, 0x00020000, 0x40000000, 17


def _text(value):
    return ctypes.c_char_p(value.encode())


def namespaces(host):
    """Each in a child of its own: what one of them wins must not change the next."""
    def in_child(body):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            word = told(body)
            os.write(writer, word.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            word = answer.read()
        os.waitpid(child, 0)
        return word or "killed"

    def cloned():
        child = syscall("clone", CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    folder = host["folder"]
    handle = ctypes.create_string_buffer(64)
    tries = {
        "new_user": lambda: syscall("unshare", CLONE_NEWUSER),
        "new_mounts": lambda: syscall("unshare", CLONE_NEWNS),
        "new_network": lambda: syscall("unshare", CLONE_NEWNET),
        "clone_user": cloned,
        "mount": lambda: syscall("mount", _text("attack"), _text(folder), _text("tmpfs"), 0, 0),
        "bind": lambda: syscall("mount", _text(folder), _text(folder), 0, 0x1000, 0),
        "new_mount_interface": lambda: os.close(syscall("fsopen", _text("tmpfs"), 0)),
        "detached_tree": lambda: os.close(syscall("open_tree", -100, _text(folder), 1)),
        "change_mount": lambda: reaches("mount_setattr", -100, _text("/"), 0, 0, 1, by=[errno.EINVAL]),
        "change_root": lambda: os.chroot("/"),
        "turn_root": lambda: reaches("pivot_root", _text("/"), _text("/"), by=[errno.EINVAL, errno.EBUSY]),
        "whiteout": lambda: os.mknod("whiteout", stat.S_IFCHR | 0o600, 0),
        "device": lambda: os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 1)),
        "join": lambda: reaches("setns", 0, 0x7FFFFFFF, by=[errno.EINVAL]),
        "by_handle": lambda: reaches("open_by_handle_at", -100, handle, 0, by=[errno.EINVAL, errno.ESTALE]),
    }
    return {name: in_child(body) for name, body in tries.items()}


def programs_for_the_kernel(host):
    attributes = ctypes.create_string_buffer(128)
    # PERF_TYPE_SOFTWARE with its size, disabled, without the kernel and the hypervisor.
    event = ctypes.create_string_buffer(128)
    event[0:4] = (1).to_bytes(4, "little")
    event[4:8] = (128).to_bytes(4, "little")
    event[40:48] = (0b1100001).to_bytes(8, "little")
    return attempts(
        bpf=lambda: reaches("bpf", 0, ctypes.byref(attributes), 128, by=[errno.EINVAL]),
        perf=lambda: os.close(syscall("perf_event_open", ctypes.byref(event), 0, -1, -1, 0)),
        userfaultfd=lambda: os.close(syscall("userfaultfd", 1)),
        personality=lambda: syscall("personality", 0x0040000),
        kexec=lambda: reaches("kexec_load", 0, 0, 0, 0, by=[errno.EBUSY]),
        load_module=lambda: reaches("init_module", 0, 0, 0, by=[errno.ENOEXEC, errno.EFAULT]),
        load_module_file=lambda: reaches("finit_module", -1, 0, 0, by=[errno.EBADF]),
        unload_module=lambda: reaches("delete_module", 0, 0, by=[errno.EFAULT]),
    )


def clone3(host):
    """The kernel's newer call for processes, whose flags a filter cannot see; threads must work without it."""
    arguments = (ctypes.c_uint64 * 11)()
    arguments[4] = SIGCHLD

    def made():
        child = syscall("clone3", ctypes.byref(arguments), 88)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    found = attempts(clone3=made)
    ran = []
    thread = threading.Thread(target=lambda: ran.append(1))
    thread.start()
    thread.join()
    found["threads"] = WORKS if ran else "broken"
    child = os.fork()
    if child == 0:
        os._exit(7)
    found["processes"] = WORKS if os.waitpid(child, 0)[1] == 7 << 8 else "broken"
    return found


def old_interrupt(host):
    """The 32-bit way into the kernel: its numbers mean other calls."""
    if not is_x86():
        return {"interrupt": "absent"}
    # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
    code = b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    call = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    return attempts(interrupt=lambda: call() > 0)


def x32_numbers(host):
    if not is_x86():
        return {"number": "absent"}
    return attempts(number=lambda: syscall(39 | 0x40000000))


def terminal(host):
    """The kernel looks at 32 bits of the command only; a filter must not look at more."""
    ENOTTY = [errno.ENOTTY]

    def reached(command, descriptor):
        letter = ctypes.c_char_p(b"x")
        result = libc.ioctl(ctypes.c_int(descriptor), ctypes.c_ulong(command), letter)
        code = ctypes.get_errno()
        if result < 0 and code not in ENOTTY:
            raise OSError(code, os.strerror(code))
        return True

    TIOCSTI, TIOCLINUX, HIGH = 0x5412, 0x541C, 1 << 32
    one, two = socket.socketpair()
    found = attempts(
        push=lambda: reached(TIOCSTI, one.fileno()),
        push_high=lambda: reached(TIOCSTI + HIGH, one.fileno()),
        console=lambda: reached(TIOCLINUX, one.fileno()),
        console_high=lambda: reached(TIOCLINUX + HIGH, one.fileno()),
        terminal=lambda: os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)),
        own_terminal=lambda: os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)),
    )
    return found


def clock_and_names(host):
    """The times are wrong, so that nothing happens where nothing stands against it."""
    time = (ctypes.c_int64 * 2)(0, 2_000_000_000)
    FIFO = os.SCHED_FIFO
    return attempts(
        clock=lambda: reaches("clock_settime", 0, ctypes.byref(time), by=[errno.EINVAL]),
        time_of_day=lambda: reaches("settimeofday", ctypes.byref(time), 0, by=[errno.EINVAL]),
        host_name=lambda: socket.sethostname("attacked"),
        real_time=lambda: os.sched_setscheduler(0, FIFO, os.sched_param(1)),
        less_nice=lambda: os.nice(-5) if os.nice(0) <= 0 else False,
    )


def execute(host):
    """Tools may start programs, existing ones and ones that no file system shows: they stay in the same sandbox."""
    code = (
        "import os, socket, sys\n"
        "open(sys.argv[1]).read()\n"
        "socket.create_connection(('127.0.0.1', int(sys.argv[2])), 5).close()\n"
        "os.kill(int(sys.argv[3]), 0)\n"
    )
    words = ["-I", "-S", "-c", code, host["database"], str(host["tcp"]), str(host["victim"])]

    def spawned():
        return not subprocess.run([sys.executable, *words], capture_output=True, timeout=30, check=False).returncode

    def from_memory():
        with open(os.path.realpath(sys.executable), "rb") as file:
            content = file.read()
        memory = syscall("memfd_create", _text("attack"), 0)
        os.write(memory, content)
        child = os.fork()
        if child == 0:
            try:
                os.close(2)
                os.execve(memory, ["attack", *words], {})
            except OSError as error:
                os._exit(error.errno)
        return not os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return attempts(subprocess=spawned, memory=from_memory)


def raise_limits(host):
    def unlimited(which):
        resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return attempts(
        address_space=lambda: unlimited(resource.RLIMIT_AS),
        processes=lambda: unlimited(resource.RLIMIT_NPROC),
        file_size=lambda: unlimited(resource.RLIMIT_FSIZE),
        descriptors=lambda: _more_descriptors(),
    )


def _more_descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard >= 4096:
        return True
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    return True


entries(globals())
