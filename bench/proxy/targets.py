"""The programs that are measured and how each is started.

In a command and in a file, `{port}` and `{admin}` become ports, `{engine_1}` to `{engine_4}` addresses of engines,
`{urls}` their URLs and `{workers}` the same as options, `{folder}` the folder of the results, and `{bench}` this one.
"""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

ENGINES = 4
BENCH = os.path.dirname(os.path.abspath(__file__))
WARMROUTE = "{warmroute} serve --listen 127.0.0.1:{port} --admin-listen 127.0.0.1:{admin} {workers}"
OTHER_ROUTER = (
    "--host 127.0.0.1 --port {port} --prometheus-host 127.0.0.1 --prometheus-port {admin} --worker-urls {urls} "
    "--policy cache_aware --log-level"
)


@dataclass(frozen=True)
class Target:
    label: str
    # None: the load goes straight to the engines.
    command: str | None
    # Files of this folder that are copied with their placeholders filled in.
    files: tuple = ()
    # What prints the version.
    version: str | None = None


def version_of_package(name):
    return f"{{routers}}/{name}/bin/python -c \"import importlib.metadata as m; print(m.version('{name}'))\""


TARGETS = {
    "direct": Target("no proxy", None),
    "nginx": Target("nginx", "nginx -c {folder}/nginx.conf -e {folder}/nginx-error.log", ("nginx.conf",), "nginx -v"),
    "warmroute-round-robin": Target("**warmroute, `round_robin`**", WARMROUTE + " --policy round_robin"),
    "warmroute-text": Target("**warmroute, text**", WARMROUTE + " --config {bench}/text.yaml"),
    "warmroute-exact": Target("**warmroute, exact**", WARMROUTE + " --tokenizer fake={model}"),
    "smg": Target(
        "smg", "{routers}/smg/bin/smg launch " + OTHER_ROUTER + " warn", version=version_of_package("smg")
    ),
    "sglang-router": Target(
        "sglang-router", "{routers}/sglang-router/bin/sglang-router launch " + OTHER_ROUTER + " warn",
        version=version_of_package("sglang-router"),
    ),
    "vllm-router": Target(
        "vllm-router", "{routers}/vllm-router/bin/vllm-router " + OTHER_ROUTER + " warning",
        version=version_of_package("vllm-router"),
    ),
}


class Placeholders:
    """The values of one run."""

    def __init__(self, args):
        engines = [f"127.0.0.1:{args.base_port + at}" for at in range(ENGINES)]
        urls = ["http://" + engine for engine in engines]
        self.values = {
            "port": str(args.base_port + 50),
            "admin": str(args.base_port + 51),
            "urls": " ".join(urls),
            "workers": " ".join("-w " + url for url in urls),
            "folder": os.path.abspath(args.out),
            "bench": BENCH,
            "warmroute": os.path.abspath(args.warmroute),
            "routers": os.path.abspath(args.routers),
            "model": os.path.abspath(args.model),
        }
        self.values.update({f"engine_{at + 1}": engine for at, engine in enumerate(engines)})

    def fill(self, text):
        for name, value in self.values.items():
            text = text.replace("{" + name + "}", value)
        return text

    def command(self, target):
        """Writes the target's files; returns its command as a list. Fails if the program is missing."""
        for name in target.files:
            with open(os.path.join(BENCH, name), encoding="utf-8") as file:
                content = self.fill(file.read())
            with open(os.path.join(self.values["folder"], name), "w", encoding="utf-8") as file:
                file.write(content)
        command = shlex.split(self.fill(target.command))
        program = shutil.which(command[0])
        if program is None:
            raise RuntimeError(f"there is no program {command[0]}: see README.md for what installs it")
        return [program] + command[1:]

    def version(self, target):
        """Returns what the program says about its version, or nothing."""
        if target.version is None:
            return None
        try:
            done = subprocess.run(
                shlex.split(self.fill(target.version)), capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return (done.stdout or done.stderr).strip().rpartition("/")[2]
