"""Loops while it is imported."""
from attempt import mark

mark()
while True:
    pass
