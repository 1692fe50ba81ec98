"""Runs a program where the system refuses what a default Docker engine refuses to an ordinary container.

    docker.py PROGRAM ARGUMENT...

New namespaces, mounts and the change of the root are EPERM, `clone3` is ENOSYS.
"""

import ctypes
import errno
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NAMESPACES = 0x7E020000 | 0x80


def numbers(x86, generic):
    return x86 if X86 else generic


refused = [
    numbers(165, 40), numbers(166, 39), numbers(155, 41), numbers(308, 268), numbers(272, 97),
    428, 429, 430, 431, 432, 433, 442, numbers(298, 241), numbers(321, 280), 425, 426, 427,
    numbers(304, 265), numbers(250, 219), numbers(248, 217), numbers(249, 218), numbers(323, 282),
]
program = [(LOAD, 0, 0, 0)]
for number in refused:
    program += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.EPERM)]
program += [(JUMP_EQUAL, 0, 1, 435), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
# clone with one of the flags for namespaces
program += [
    (JUMP_EQUAL, 0, 3, numbers(56, 220)),
    (LOAD, 0, 0, 16),
    (JUMP_SET, 0, 1, NAMESPACES),
    (RETURN, 0, 0, ERRNO | errno.EPERM),
    (RETURN, 0, 0, ALLOW),
]
code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
buffer = ctypes.create_string_buffer(code)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


filter = Program(len(program), ctypes.addressof(buffer))
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter), 0, 0)):
    if libc.prctl(*words):
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
