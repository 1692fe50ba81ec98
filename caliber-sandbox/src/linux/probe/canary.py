# Runs inside of a sandbox that is being looked at, and tries what a tool must not be able to do. Nothing here harms: what
# is reached is the probe's own. One JSON object is read from standard input, and one is written to standard output.
import errno
import json
import os
import sys
import time

question = json.loads(sys.stdin.read())
tries = {}


def attempt(name, action, held=None):
    """Whether `action` is possible; with `held`, only these errors count as a refusal."""
    try:
        action()
    except OSError as error:
        word = errno.errorcode.get(error.errno, type(error).__name__)
        tries[name] = "held:" + word if held is None or word in held else "open"
    except Exception as error:
        tries[name] = "untested:" + type(error).__name__
    else:
        tries[name] = "open"


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def write(path):
    with open(path, "wb") as file:
        file.write(b"canary")


# Files of the machine.
folder = question["folder"]
attempt("read_file", lambda: read(folder + "/canary"))
attempt("list_folder", lambda: os.listdir(folder))
attempt("file_metadata", lambda: os.stat(folder + "/canary"))
attempt("read_through_proc", lambda: read("/proc/1/root" + folder + "/canary"))
attempt("write_folder", lambda: write(folder + "/written-" + question["marker"]))
attempt("write_file", lambda: write(folder + "/writable"))
attempt("change_mode", lambda: os.chmod(folder + "/writable", 0o600))
attempt("write_source", lambda: write(question["source"] + "/written"))
attempt("write_root", lambda: write("/written-" + question["marker"]))

# What the call before has left, and whether this one can work.
def find_left():
    found = [place for place in question["scratch"] if os.path.exists(place + "/" + question["marker"])]
    if not found:
        raise OSError(errno.ENOENT, "nothing")


attempt("left_behind", find_left)
attempt("scratch", lambda: [write(place + "/" + question["marker"]) for place in question["scratch"]])

# Sockets.
try:
    import socket
except ImportError:
    socket = None


def connect(family, kind, address):
    with socket.socket(family, kind) as connection:
        connection.settimeout(0.5)
        connection.connect(address)
        connection.send(b"canary")


def make(name, *rest):
    socket.socket(getattr(socket, name), *rest).close()


attempt("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", question["tcp"])))
attempt("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", question["udp"])))
attempt("vsock", lambda: make("AF_VSOCK", 1))
attempt("packet", lambda: make("AF_PACKET", 3))
attempt("unix_abstract", lambda: connect(socket.AF_UNIX, 1, "\0" + question["abstract"]))
attempt("unix_path", lambda: connect(socket.AF_UNIX, 1, folder + "/socket"))

# Other processes.
host = question["host"]


def other_processes():
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    if not others:
        raise OSError(errno.ESRCH, "none")


attempt("see_processes", other_processes)
if host > 8:
    attempt("sense_process", lambda: os.kill(host, 0), held=("ESRCH",))
    attempt("signal_process", lambda: os.kill(host, 0))

# System calls, by number: unshare, io_uring_setup, keyctl, process_vm_readv, userfaultfd, kcmp, bpf, shmget, mq_open;
# and to clear up after the last two shmctl and mq_unlink.
NUMBERS = {
    "x86_64": (272, 425, 250, 310, 323, 312, 321, 29, 240, 31, 241),
    "aarch64": (97, 425, 219, 270, 282, 272, 280, 194, 180, 195, 181),
}
SURFACE = ("unshare", "io_uring", "keyctl", "process_vm", "userfaultfd", "kcmp", "bpf", "sysv_shm", "message_queue")
status = {}
try:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    numbers = NUMBERS[os.uname().machine]

    def call(number, *arguments):
        ctypes.set_errno(0)
        arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
        answer = libc.syscall(ctypes.c_long(number), *arguments)
        if answer == -1:
            raise OSError(ctypes.get_errno(), "refused")
        if number == numbers[7]:
            call(numbers[9], answer, 0, 0)
        if number == numbers[8]:
            call(numbers[10], QUEUE)

    space = ctypes.create_string_buffer(256)
    QUEUE = ctypes.create_string_buffer(b"caliber-probe-%d" % os.getpid())
    ARGUMENTS = (
        (0x10000000,), (1, space), (0, -3, 0), (os.getpid(), 0, 0, 0, 0, 0), (1,),
        (os.getpid(), os.getpid(), 1, 0, 0), (0, space, 72), (0, 4096, 0o1600),
        (QUEUE, 0o102, 0o600, 0),
    )
    # A call that complains of its arguments was let through.
    REFUSALS = ("ENOSYS", "EPERM", "EACCES")
    for name, number, arguments in zip(SURFACE, numbers, ARGUMENTS):
        attempt(name, lambda: call(number, *arguments), held=REFUSALS)
    status["seccomp"] = libc.prctl(21, 0, 0, 0, 0)
    status["no_new_privileges"] = libc.prctl(39, 0, 0, 0, 0)
except Exception as error:
    for name in SURFACE:
        tries.setdefault(name, "untested:" + type(error).__name__)
try:
    with open("/proc/self/status") as lines:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
    status["seccomp"] = int(fields["Seccomp"])
    status["no_new_privileges"] = int(fields["NoNewPrivs"])
    status["capabilities"] = int(fields["CapEff"], 16)
except (OSError, KeyError, ValueError):
    pass

# How many processes there may be.
forked = []
try:
    while len(forked) < question["processes"]:
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        forked.append(child)
except OSError:
    pass
for child in forked:
    os.kill(child, 9)
    os.waitpid(child, 0)

# A process that wants to stay. It holds standard output, so that the probe sees how long it lives.
daemon = True
try:
    if os.fork() == 0:
        import signal

        os.setsid()
        for number in (1, 2, 15):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(question["stays"])
        os._exit(0)
except OSError:
    daemon = False

print(json.dumps({"tries": tries, "status": status, "forked": len(forked), "daemon": daemon}), flush=True)
os._exit(0)
