"""Sleeps while it is imported."""
import time

from attempt import mark

mark()
time.sleep(600)


def answer(host):
    return None
