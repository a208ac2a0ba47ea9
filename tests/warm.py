"""Python processes that have imported torch and PyG before they begin.

These imports take longer than most scripts of the tests. A server imports
them and does nothing else: for each script it forks, and the fork runs the
script as ``__main__``, in the folder and the environment that it is given,
and ends as Python ends. Nothing of pyg_trust is imported before. Scripts that
look at imports or at memory start a Python of their own.
"""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path


class Process:
    """A Python process: `-W ACTION`, `-c CODE` or a script, arguments."""

    def __init__(self, *arguments, cwd=None, env=None):
        self.args = [str(argument) for argument in arguments]
        self.folder = tempfile.TemporaryDirectory()
        self.pid = ask(
            arguments=self.args,
            cwd=str(cwd or Path.cwd()),
            env=dict(os.environ if env is None else env),
            folder=self.folder.name,
        )

    def wait(self, timeout=600):
        """Return what it printed and its status; it is killed when late."""
        code = ask(pid=self.pid, timeout=timeout)
        printed = [
            (Path(self.folder.name) / name).read_text() for name in ('1', '2')
        ]
        self.folder.cleanup()
        return subprocess.CompletedProcess(self.args, code, *printed)


def run(*arguments, cwd=None, env=None):
    """Run a Python process to its end."""
    if sys.platform == 'linux':
        return Process(*arguments, cwd=cwd, env=env).wait()
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )


@functools.cache
def server():
    """Start the server of this process."""
    started = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(started.kill)
    return started


def ask(**request):
    """Send a request to the server and return its answer."""
    there = server()
    there.stdin.write(json.dumps(request) + '\n')
    there.stdin.flush()
    return json.loads(there.stdout.readline())


def serve():
    """Fork and wait as requested; a fork returns what it shall run."""
    while line := sys.stdin.readline():
        request = json.loads(line)
        if 'pid' in request:
            answer = ended(**request)
        else:
            answer = os.fork()
            if answer == 0:
                return request
        sys.stdout.write(f'{answer}\n')
        sys.stdout.flush()
    return None


def ended(pid, timeout):
    """Wait for a fork, and kill it when it is late; its exit status."""
    late = time.monotonic() + timeout
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > late:
            os.kill(pid, signal.SIGKILL)
            late = float('inf')
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(found[1])


def become(arguments, cwd, env, folder):
    """Run a script in this process, as if it had just started."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        file = os.path.join(folder, str(number))
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    numpy.random.seed()
    if 'OMP_NUM_THREADS' in env:
        torch.set_num_threads(int(env['OMP_NUM_THREADS']))
    if arguments[0] == '-W':
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    main = types.ModuleType('__main__')
    if arguments[0] == '-c':
        name, home, code = '<string>', '', arguments[1]
        arguments = ['-c', *arguments[2:]]
    else:
        name = main.__file__ = arguments[0]
        home, code = str(Path(name).parent), Path(name).read_text()
    sys.argv = arguments
    paths = env.get('PYTHONPATH', '').split(os.pathsep)
    sys.path[:1] = [home, *(path for path in paths if path)]
    sys.modules['__main__'] = main
    exec(compile(code, name, 'exec', dont_inherit=True), vars(main))


if __name__ == '__main__':
    import numpy
    import torch
    import torch_geometric  # noqa: F401

    asked = serve()
    if asked is not None:
        become(**asked)
