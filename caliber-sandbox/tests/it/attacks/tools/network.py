"""Attacks over the network and between processes: rows 23 to 30."""

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct

from attempt import WORKS, attempts, entries, syscall, told


def tcp(host):
    def connect():
        with socket.create_connection(("127.0.0.1", host["tcp"]), timeout=5) as connection:
            connection.sendall(b"attack")

    def without_connect():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            MSG_FASTOPEN = 0x20000000
            connection.sendto(b"attack", MSG_FASTOPEN, ("127.0.0.1", host["tcp"]))

    return attempts(connect=connect, fast_open=without_connect)


def tcp_listen(host):
    def listen():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("0.0.0.0", 0))
            listener.listen()

    return attempts(listen=listen)


def udp(host):
    def send():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"attack", ("127.0.0.1", host["udp"]))

    return attempts(send=send)


def interfaces(host):
    """Nothing is sent: connecting a datagram socket only asks for a route."""
    def route(family, address):
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((address, 80))

    def is_up():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            SIOCGIFFLAGS, IFF_UP = 0x8913, 1
            answer = fcntl.ioctl(asking, SIOCGIFFLAGS, struct.pack("16sH14s", b"lo", 0, b""))
            return bool(struct.unpack("16sH14s", answer)[1] & IFF_UP)

    return attempts(
        loopback_up=is_up,
        metadata_service=lambda: route(socket.AF_INET, "169.254.169.254"),
        loopback=lambda: route(socket.AF_INET, "127.0.0.1"),
        loopback_6=lambda: route(socket.AF_INET6, "::1"),
        other_interfaces=lambda: any(name != "lo" for _, name in socket.if_nameindex()),
        anywhere=lambda: route(socket.AF_INET, "192.0.2.1"),
    )


def abstract_socket(host):
    def connect():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect("\0" + host["abstract"])

    return attempts(connect=connect)


def path_socket(host):
    def connect():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(host["socket"])

    return attempts(connect=connect)


def odd_sockets(host):
    families = {
        "vsock": (40, socket.SOCK_STREAM, 0),
        "netlink": (16, socket.SOCK_RAW, 0),
        "netlink_audit": (16, socket.SOCK_RAW, 9),
        "packet": (17, socket.SOCK_RAW, 0),
        "raw": (2, socket.SOCK_RAW, 1),
        "algorithms": (38, socket.SOCK_SEQPACKET, 0),
        "xdp": (44, socket.SOCK_RAW, 0),
        "can": (29, socket.SOCK_RAW, 1),
        "bluetooth": (31, socket.SOCK_RAW, 1),
        "rds": (21, socket.SOCK_SEQPACKET, 0),
        "kcm": (41, socket.SOCK_SEQPACKET, 0),
        "tipc": (30, socket.SOCK_SEQPACKET, 0),
        "smc": (43, socket.SOCK_STREAM, 0),
        "multipath": (2, socket.SOCK_STREAM, 262),
    }

    def made(family, kind, protocol):
        socket.socket(family, kind, protocol).close()

    found = {name: told(lambda words=words: made(*words)) for name, words in families.items()}

    def pair():
        one, two = socket.socketpair()
        one.sendall(b"x")
        assert two.recv(1) == b"x"

    found["pair"] = WORKS if told(pair) == "won" else "refused"
    return found


def shared_kernel_objects(host):
    IPC_CREAT, O_CREAT, O_RDWR = 0o1000, 0o100, 2
    key = 0x43414C49
    return attempts(
        shared_memory=lambda: syscall("shmget", key, 4096, IPC_CREAT | 0o600),
        messages=lambda: syscall("msgget", key, IPC_CREAT | 0o600),
        semaphores=lambda: syscall("semget", key, 1, IPC_CREAT | 0o600),
        queue=lambda: os.close(syscall("mq_open", ctypes.c_char_p(b"caliber-attack"), O_CREAT | O_RDWR, 0o600, 0)),
        add_key=lambda: syscall(
            "add_key", ctypes.c_char_p(b"user"), ctypes.c_char_p(b"caliber"), ctypes.c_char_p(b"x"), 1, -2
        ),
        key_control=lambda: syscall("keyctl", 0, -3, 1),
    )


def io_uring(host):
    parameters = ctypes.create_string_buffer(120)
    return attempts(setup=lambda: os.close(syscall("io_uring_setup", 4, ctypes.byref(parameters))))


entries(globals())
