"""python nlu_pai_entry.py --nlu-job=TEXT: the first program of a MaxCompute job; it lies in the archive of the code."""

import base64
import json
import os
import sys


def main(arguments: list) -> None:
    """Become the program in the argument, in the folder of the code."""
    if sys.version_info < (3, 11):
        sys.exit("this PAI command has Python %d.%d, but nlu needs 3.11 or newer; choose another "
                 "hydra.launcher.framework_version" % sys.version_info[:2])  # fmt: skip
    (text,) = [each[len("--nlu-job=") :] for each in arguments if each.startswith("--nlu-job=")]
    job = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("utf-8"))
    os.environ.update(job["environment"])
    code = os.path.dirname(os.path.abspath(__file__))
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([code] + ([known] if known else []))
    os.chdir(os.path.join(code, job["within"]))
    os.execv(sys.executable, [sys.executable] + job["arguments"])


if __name__ == "__main__":
    main(sys.argv[1:])
