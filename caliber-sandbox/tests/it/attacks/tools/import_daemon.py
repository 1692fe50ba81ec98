"""Leaves a process behind while it is imported."""
from processes import daemon

daemon(None)


def answer(host):
    return {"result": "works"}
