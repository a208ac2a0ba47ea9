"""Which tests run: by what they cost, in CPU seconds, when last measured.

    pytest                 tests below 0.5 s, and 0.5 s of a function
    pytest --tier=ci       below 2 s, 2 s of a function, and the sentinels
    pytest --tier=deep     all; writes costs.csv

Rows that a tier leaves out come round: which are taken depends on the commit.
A test that is named (file.py::test) always runs. costs.csv has what costs
0.3 s or more: functions, dear rows of cheap functions, and fixtures that tests
share. The deep run fails where a test that is not listed costs 0.5 s or more.
For ``--touched=SECONDS`` all tests of the rooms run, too, that differ from
what landed last.

Two marks, for the tier ci: ``sentinel`` takes a test whatever it costs
(``sentinel(rows=3)`` three rows of it), ``sources('csrc', ...)`` takes it if
files there have changed, and leaves it out otherwise.
"""

import collections
import csv
import functools
import hashlib
import math
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COSTS = ROOT / 'tests' / 'costs.csv'
LIMITS = {'local': 0.5, 'ci': 2.0, 'deep': math.inf}
EXAMPLES = {'local': 10, 'ci': 50, 'deep': 1000}  # of hypothesis
LISTED, DEAR = 0.3, 0.5
FIXTURE = ' (fixture)'


def deep():
    """Whether all of it runs: tests that repeat something repeat it more."""
    return os.environ.get('PYG_TRUST_TIER') == 'deep'


def git(*arguments):
    """The lines that git prints; none without git or without a repository."""
    try:
        done = subprocess.run(
            ['git', *arguments], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


@functools.cache
def changed():
    """Files that differ from what landed last; None if nobody knows."""
    head, *_ = git('rev-parse', 'HEAD') or ['']
    for base in ('origin/main', 'main', 'HEAD^'):
        there = git('merge-base', 'HEAD', base)
        if there and there != [head]:
            unsaved = git('ls-files', '-mo', '--exclude-standard')
            return {*git('diff', '--name-only', *there), *unsaved}
    return None


def have_changed(*places):
    """Whether a file has changed whose path begins with one of `places`."""
    files = changed()
    return files is None or any(file.startswith(places) for file in files)


def touched(path):
    """Whether a change concerns the tests of a file: it, or its room."""
    rooms = set()
    for file in changed() or ():
        folder, *inside = Path(file).with_suffix('').parts
        if file.startswith('csrc/'):
            rooms |= {'ops', 'agp', 'sampler'}
        elif folder in ('pyg_trust', 'tests') and inside:
            rooms |= {part.removeprefix('test_') for part in inside}
    path = path.relative_to(ROOT).with_suffix('')
    stem = path.name.removeprefix('test_')
    return any(part in rooms for part in path.parts[1:-1]) or any(
        stem == room or stem.startswith(f'{room}_') for room in rooms
    )


def read():
    """The seconds of a row: of a function on average, of a row, a fixture."""
    if not COSTS.exists():
        return {}
    with COSTS.open(newline='') as file:
        return {
            row['test']: float(row['seconds']) / int(row['rows'])
            for row in csv.DictReader(file)
        }


def function_of(nodeid):
    """The test without its row."""
    return nodeid.partition('[')[0]


def shared(costs):
    """The seconds of each fixture that tests share, by name and folder."""
    found = collections.defaultdict(dict)
    for name, seconds in costs.items():
        if name.endswith(FIXTURE):
            folder, _, name = name.removesuffix(FIXTURE).rpartition('::')
            found[name][folder] = seconds
    return found


def chosen(items, tier, commit):
    """The ids of the tests of a tier."""
    costs, limit = read(), LIMITS[tier]
    fixtures = shared(costs)
    functions = collections.defaultdict(list)
    for item in items:
        functions[function_of(item.nodeid)].append(item)
    found = set()
    for function, rows in functions.items():
        spent, left = 0.0, math.inf
        rows.sort(key=lambda item: draw(commit, item.nodeid))
        for item in rows:
            cost = costs.get(item.nodeid, costs.get(function, 0.0))
            made = [
                seconds
                for name in getattr(item, 'fixturenames', ())
                for folder, seconds in fixtures.get(name, {}).items()
                if item.nodeid.startswith(folder)
            ]
            cheap = max([cost, *made]) < limit
            sentinel = tier == 'ci' and item.get_closest_marker('sentinel')
            sources = tier == 'ci' and item.get_closest_marker('sources')
            if sources:
                taken = have_changed(*sources.args)
            elif sentinel:
                left = min(left, sentinel.kwargs.get('rows', math.inf))
                taken, left = left > 0, left - 1
            else:
                taken = cheap and spent + cost <= limit
            if taken:
                spent += cost
                found.add(item.nodeid)
    return found


def draw(commit, nodeid):
    """A number of a row that another commit changes."""
    return hashlib.sha256(f'{commit} {nodeid}'.encode()).digest()


def cpu():
    """Seconds of this process and of all that it has started."""
    now = os.times()
    return sum(now[:4]) + below(os.getpid())


def below(pid):
    """Seconds of processes that are still there."""
    total, hz = 0.0, os.sysconf('SC_CLK_TCK')
    try:
        for task in Path(f'/proc/{pid}/task').iterdir():
            for child in (task / 'children').read_text().split():
                stat = Path(f'/proc/{child}/stat').read_text()
                times = stat.rpartition(')')[2].split()[11:15]
                total += sum(map(int, times)) / hz + below(int(child))
    except OSError:
        pass  # it has just ended
    return total


class Recorder:
    """Measures each test, and writes what those cost that ran."""

    def __init__(self, whole):
        self.whole = whole
        self.then, self.shared, self.owed = cpu(), {}, 0.0
        self.spent = collections.Counter()
        self.news = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        before = cpu()
        found = yield
        spent = cpu() - before
        if fixturedef.scope != 'function' and spent >= LISTED:
            name = f'{fixturedef.baseid}::{fixturedef.argname}{FIXTURE}'
            self.shared[name] = spent
            self.owed += spent
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        now = cpu()
        report.tier = {'cpu': now - self.then - self.owed, **self.shared}
        self.then, self.shared, self.owed = now, {}, 0.0
        return report

    def pytest_runtest_logstart(self):
        self.then, self.owed = cpu(), 0.0

    def pytest_runtest_logreport(self, report):
        costs = dict(getattr(report, 'tier', {}))
        self.spent[report.nodeid] += costs.pop('cpu', 0)
        for name, seconds in costs.items():
            self.spent[name] = max(self.spent[name], seconds)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if hasattr(session.config, 'workerinput'):
            return
        old = read()
        self.news = sorted(
            f'{test}: {seconds:.2f} s'
            for test, seconds in self.spent.items()
            if seconds >= DEAR
            and not {test, function_of(test)} & set(old)
            and not test.endswith(FIXTURE)
        )
        write(self.spent, self.whole)
        if self.news and session.exitstatus == 0:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        if self.news:
            terminalreporter.section(f'not in {COSTS.name} before: commit it')
            terminalreporter.write_line('\n'.join(self.news))


def write(spent, whole):
    """Replaces the lines of what ran; all lines, if everything ran."""
    lines = {}
    if COSTS.exists() and not whole:
        with COSTS.open(newline='') as file:
            ran = {function_of(test) for test in spent}
            for row in csv.DictReader(file):
                if function_of(row['test']) not in ran:
                    lines[row['test']] = row['rows'], float(row['seconds'])
    functions = collections.defaultdict(dict)
    for test, seconds in spent.items():
        functions[function_of(test)][test] = seconds
    for function, rows in functions.items():
        mean = sum(rows.values()) / len(rows)
        for row in list(rows):
            if len(rows) > 1 and rows[row] >= max(DEAR, 1.5 * mean):
                lines[row] = 1, rows.pop(row)
        if sum(rows.values()) >= LISTED:
            lines[function] = len(rows), sum(rows.values())
    with COSTS.open('w', newline='') as file:
        file.write('test,rows,seconds\n')
        writer = csv.writer(file, lineterminator='\n')
        for test, (number, seconds) in sorted(lines.items()):
            writer.writerow([test, number, f'{seconds:.2f}'])
