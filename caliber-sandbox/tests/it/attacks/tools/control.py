"""Runs one attack as a plain child would, without a sandbox: the control.

    control.py ROOT MODULE CALLABLE     arguments on standard input, the answer in the file that they name
"""

import importlib
import json
import sys

root, module, name = sys.argv[1:]
sys.path.insert(0, root)
arguments = json.load(sys.stdin)
try:
    value = getattr(importlib.import_module(module), name)(**arguments)
    answer = {"value": value}
except BaseException as error:
    answer = {"raised": type(error).__name__}
if arguments["host"]["answer"] == "-":
    print(json.dumps(answer), flush=True)
else:
    with open(arguments["host"]["answer"], "w") as file:
        json.dump(answer, file)
