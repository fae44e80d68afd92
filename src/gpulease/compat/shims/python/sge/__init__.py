"""sge-template's package, with its classes on warm workers of gpulease. For Python 3.11 and newer.

gpulease is imported from the Python that runs this; if that has none, from where the drop-ins were written.
"""

import os
import subprocess
import sys
from importlib import import_module
from typing import Any, List

WHERE = """
import os, cloudpickle, gpulease
for module in (gpulease, cloudpickle):
    print(os.path.dirname(os.path.dirname(os.path.abspath(module.__file__))))
"""


def module(name: str) -> Any:
    """The one of gpulease that has these classes."""
    return import_module("gpulease.compat.sge." + name)


def find_gpulease() -> None:
    if sys.version_info < (3, 11):
        raise ImportError("The drop-in for sge-template needs Python 3.11 or newer; this is " + sys.version.split()[0])
    try:
        import_module("gpulease")
    except ImportError:
        places = written_from()
        sys.path.extend(places)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *places]))


def written_from() -> List[str]:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    words = import_module("gpulease_shim").command()
    if words[-2:] != ["-m", "gpulease"]:
        raise ImportError("gpulease is not installed for {0}: {0} -m pip install gpulease".format(sys.executable))
    printed = subprocess.check_output([*words[:-2], "-c", WHERE], universal_newlines=True)
    return list(dict.fromkeys(printed.split("\n")[:-1]))


find_gpulease()
