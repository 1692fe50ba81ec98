"""Lays out a module whose bytecode says something else than its source.

    poison.py FOLDER
"""

import importlib.util
import os
import py_compile
import sys

folder = sys.argv[1]
honest = "def answer(host):\n    return {'answer': 'works'}\n"
poisoned = honest.replace("works", "poisoned")
modes = {
    "unchecked": py_compile.PycInvalidationMode.UNCHECKED_HASH,
    "dated": py_compile.PycInvalidationMode.TIMESTAMP,
}
for name, mode in modes.items():
    source = os.path.join(folder, name + ".py")
    # Padded to the same length and given the same time: all that bytecode with a date is compared by.
    with open(source, "w") as file:
        file.write(poisoned)
    os.utime(source, (1_000_000_000, 1_000_000_000))
    py_compile.compile(source, importlib.util.cache_from_source(source), doraise=True, invalidation_mode=mode)
    with open(source, "w") as file:
        file.write(honest + "\n" * (len(poisoned) - len(honest)))
    os.utime(source, (1_000_000_000, 1_000_000_000))
