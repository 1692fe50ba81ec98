"""Attacks on files and secrets: rows 1 to 12."""

import os
import stat
import sys

from attempt import WON, WORKS, attempts, entries, told


def _read(path):
    with open(path, "rb") as file:
        file.read(64)


def _opened_for_writing(path):
    os.close(os.open(path, os.O_WRONLY))


def read_passwords(host):
    return attempts(
        read_passwd=lambda: _read("/etc/passwd"),
        read_shadow=lambda: _read("/etc/shadow"),
    )


def reach_database(host):
    def overwrite():
        with open(host["database"], "r+b") as file:
            file.write(b"X")

    return attempts(
        read_open_file=lambda: _read(host["database"]),
        read_private_file=lambda: _read(host["private"]),
        open_for_writing=overwrite,
        truncate=lambda: os.truncate(host["database"], 1),
    )


def change_metadata(host):
    """What says something about a file, without its content."""
    def enter():
        os.chdir(os.path.dirname(host["database"]))
        os.stat("database")

    return attempts(
        change_mode=lambda: os.chmod(host["private"], 0o777),
        change_mode_of_source=lambda: os.chmod(os.path.dirname(os.path.abspath(__file__)), 0o777),
        change_times=lambda: os.utime(host["private"], (1, 1)),
        look_up=lambda: os.stat(host["database"]),
        enter_folder=enter,
    )


def list_folders(host):
    """A folder may hold what leads to the interpreter and to the tool, and nothing else."""
    allowed = {sys.prefix, sys.base_prefix, sys.executable, os.path.realpath(sys.executable), os.getcwd(), "/tmp"}
    allowed.update(path for path in sys.path if path)
    allowed.update(os.path.dirname(module.__file__) for module in list(sys.modules.values())
                   if getattr(module, "__file__", None))

    def leads(path):
        return any(root == path or root.startswith(path + "/") or path.startswith(root + "/") for root in allowed)

    def listed(folder):
        return any(not leads(os.path.join(folder, entry)) for entry in os.listdir(folder))

    return attempts(
        root=lambda: listed("/root"),
        home=lambda: listed("/home"),
        opt=lambda: listed("/opt"),
        var=lambda: listed("/var"),
        srv=lambda: listed("/srv"),
        boot=lambda: listed("/boot"),
        sys=lambda: listed("/sys"),
        host_folder=lambda: "database" in os.listdir(os.path.dirname(host["database"])),
    )


def write_module(host):
    here = os.path.dirname(os.path.abspath(__file__))

    def create(name):
        with open(os.path.join(here, name), "w") as file:
            file.write("raise SystemExit('poisoned')\n")

    def overwrite():
        with open(__file__, "r+") as file:
            file.seek(0, os.SEEK_END)
            file.write("\ndef read_passwords(host): return {'read_passwd': 'won'}\n")

    def add_pth():
        with open(os.path.join(os.path.dirname(os.__file__), "poisoned.pth"), "w"):
            pass

    return attempts(
        overwrite_source=overwrite,
        create_module=lambda: create("socket.py"),
        create_pth=lambda: create("poisoned.pth"),
        create_pth_of_interpreter=add_pth,
        rename_source=lambda: os.rename(__file__, __file__ + ".old"),
    )


def leave_links(host):
    """Leaves in the working folder what a careless host would follow."""
    for leave_one in (
        lambda: os.symlink(host["database"], "result.json"),
        lambda: os.mkfifo("result.fifo"),
        lambda: os.symlink(os.path.dirname(host["database"]), "folder"),
    ):
        told(leave_one)
    return attempts(
        through_link=lambda: _read("result.json"),
        through_folder=lambda: _read(os.path.join("folder", os.path.basename(host["database"]))),
        device=lambda: os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(254, 0)),
    )


def walk_out(host):
    path = host["database"]
    outside = path.lstrip("/")

    def from_descriptor():
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        os.close(os.open("../../../../" + outside, os.O_RDONLY, dir_fd=root))

    return attempts(
        dots=lambda: _read("../" * 40 + outside),
        own_root=lambda: _read("/proc/self/root/" + outside),
        own_folder=lambda: _read("/proc/self/cwd/" + "../" * 40 + outside),
        host_root=lambda: _read(f"/proc/{host['victim']}/root/{outside}"),
        init_root=lambda: _read("/proc/1/root/" + outside),
        parent_root=lambda: _read(f"/proc/{os.getppid()}/root/{outside}"),
        descriptor=from_descriptor,
    )


def reach_beside(host):
    """What lies beside a folder that a server may be shown, or is linked from inside of it."""
    shown = host["shown"]
    return attempts(
        same_prefix=lambda: _read(shown + "_evil/secret"),
        parent=lambda: _read(os.path.join(shown, "..", "database")),
        link=lambda: _read(os.path.join(shown, "link")),
        link_folder=lambda: _read(os.path.join(shown, "up", "database")),
        listing=lambda: "shown_evil" in os.listdir(os.path.dirname(shown)),
    )


def inherited_descriptors(host):
    """What is open besides the three standard descriptors and the one socket of the call."""
    open_ones = []
    for descriptor in range(3, 1024):
        try:
            open_ones.append((descriptor, os.fstat(descriptor).st_mode))
        except OSError:
            pass
    files = [number for number, mode in open_ones if not stat.S_ISSOCK(mode)]
    sockets = [number for number, mode in open_ones if stat.S_ISSOCK(mode)]
    readable = []
    for number in files:
        try:
            if os.pread(number, 64, 0):
                readable.append(number)
        except OSError:
            pass
    return {
        "host_file": WON if readable else "nothing",
        "more_than_the_call": WON if files or len(sockets) > 1 else "nothing",
        "_found": repr(open_ones),
    }


def environment(host):
    """The environment that tools are documented to have, and nothing of the host's."""
    known = set(host["environment"])
    found = {"secret": WON if any(host["secret"] in value for value in os.environ.values()) else "nothing"}
    found["unknown"] = WON if set(os.environ) - known else "nothing"

    def started_with():
        with open("/proc/self/environ", "rb") as file:
            return host["secret"].encode() in file.read()

    found["started_with"] = told(started_with)
    found["_names"] = " ".join(sorted(os.environ))
    return found


def write_kernel_files(host):
    return attempts(
        own_executable=lambda: _opened_for_writing("/proc/self/exe"),
        core_pattern=lambda: _opened_for_writing("/proc/sys/kernel/core_pattern"),
        modprobe=lambda: _opened_for_writing("/proc/sys/kernel/modprobe"),
        sysrq=lambda: _opened_for_writing("/proc/sysrq-trigger"),
        huge_pages=lambda: _opened_for_writing("/sys/kernel/mm/transparent_hugepage/enabled"),
        control_groups=lambda: os.mkdir("/sys/fs/cgroup/caliber-attack"),
        uevent_helper=lambda: _opened_for_writing("/sys/kernel/uevent_helper"),
    )


_PLACES = ("/tmp/left", "/dev/shm/left", "left", "/var/tmp/left", "/run/left")
left = []


def leave(host):
    """Leaves something wherever it can, for the next call to find."""
    placed = 0
    for place in _PLACES:
        try:
            with open(place, "w") as file:
                file.write("left")
            placed += 1
        except OSError:
            pass
    left.append("left")
    os.environ["LEFT"] = "left"
    sys.left = "left"
    return {"places": WORKS if placed else "nothing"}


def find_left(host):
    def exists(place):
        return os.path.exists(place)

    return attempts(
        temporary_folder=lambda: exists("/tmp/left"),
        shared_memory=lambda: exists("/dev/shm/left"),
        working_folder=lambda: exists("left"),
        other_folders=lambda: exists("/var/tmp/left") or exists("/run/left"),
        module=lambda: bool(left),
        interpreter=lambda: hasattr(sys, "left"),
        environment=lambda: "LEFT" in os.environ,
    )


def leave_and_find(host):
    """What the two would be in one process: for the control."""
    leave(host)
    return find_left(host)


def answer(host):
    """The registered answer: what other attacks must not change."""
    return {"answer": WORKS}


entries(globals())
