"""Faults of graphs that live, each found by a test of its own.

Every row of :data:`FAULTS` plants one fault into the package and runs the test
that has to fail. The other faults are here:

* 1 the old value of an arc that came is not added, 2 new values are sent to
  the old row, 3 a changed degree is sent from one end alone, 5 a node gets
  another rank and its sums stay as they are, 6 sums in float64, 9 freed room
  is not overwritten: of ``csrc``, planted by hand; ``unlearning/test_sums.py``
  fails under each, for 6 by ``test_long_rows_are_summed_as_integers`` and for
  9 by ``test_room_that_is_free_names_nobody``;
* 7 the clock of a cached row: rows are computed when they are read, and none
  is cached;
* 10 the old n in lambda n: planted by ``unlearning/test_node_updates.py``
  itself;
* 15 debits that do not add up, 16 new nodes that are not in T: certificates
  of a graph that changed are refused, as they know its digest.
"""

import json
import re
from pathlib import Path

import needs
import pytest
import warm

# A number of the specification and what is wrong; where, what stands there and
# what instead; the test that fails.
SUMS, NODES = 'unlearning/test_sums.py', 'unlearning/test_node_updates.py'
SHARDS = 'unlearning/test_shard_updates.py'
NOW, COVERED = 'certificates/test_current.py', 'privacy/test_coverage.py'
DESK = 'erasure/test_desk.py'
FAULTS = [
    (
        '4 touched rows without the ends of an edge',
        'unlearning.sums:Sums.touched',
        ('level[changed] = True', 'pass'),
        'unlearning/test_incremental.py::test_the_rows_that_an_edit_touches_'
        'are_those_within_reach',
    ),
    (
        '8 sums that may leave their range',
        'unlearning.sums:Sums._most',
        ('return room\n', "return float('inf')\n"),
        f'{SUMS}::test_a_node_of_too_many_neighbours_is_refused',
    ),
    (
        '11 a changed label without a release',
        'unlearning.node_rows:Edit.only_adds',
        ('is not None or self.labels is not None', 'is not None'),
        f'{NODES}::test_what_goes_or_changes_ends_with_a_release_and_'
        'additions_wait',
    ),
    (
        '12 a new node at the end, whatever its name',
        'unlearning.shards.updating:played',
        ('now = canonical(now)', 'pass'),
        f'{SHARDS}::test_mixed_updates_end_where_a_fresh_fit_of_shuffled_rows'
        '_does',
    ),
    (
        '13 a new node in the shard of a neighbour',
        'unlearning.shards.updating:_settled',
        (
            'shard[new] = home',
            'shard[new] = shard[now.edge_index[1][torch.searchsorted('
            'now.edge_index[0].contiguous(), new).clamp('
            'max=now.edge_index.size(1) - 1)]].clamp(min=0)',
        ),
        f'{SHARDS}::test_mixed_updates_end_where_a_fresh_fit_of_shuffled_rows'
        '_does',
    ),
    (
        '14 slices by rank',
        'unlearning.shards.graph:slice_numbers',
        ('.double() / 2**53', '.argsort().argsort().double() / n_id.numel()'),
        'unlearning/test_slices.py',
    ),
    (
        '17 radii that are smaller by the more of both kinds',
        'certificates.votes:certified_after',
        ('edges[1] + removed', 'max(edges[1], removed)'),
        f'{NOW}::test_smoothed_classes_stay_within_smaller_radii',
    ),
    (
        '18 a record for a person',
        'verify.removal:covered',
        ('moved = node_shift(ends[:, sums], gone, most, grid)', 'pass'),
        f'{COVERED}::test_a_node_is_covered_at_the_epsilon_of_all_that_it_'
        'moves',
    ),
    (
        '19 released rows that stay',
        'privacy.aggregation:PrivateNodeClassifier._erase',
        ('self._released, self._smoothed = made', 'pass'),
        f'{COVERED}::test_rows_of_who_was_removed_are_gone_and_nobody_elses',
    ),
    (
        '20 k epsilon for the epsilon of k mu',
        'privacy.coverage:Coverage._reported_of',
        (
            'gaussian_epsilon(change.mu, self.delta)',
            'change.units * gaussian_epsilon(change.mu / change.units, '
            'self.delta)',
        ),
        f'{COVERED}::test_several_people_add_up_and_the_budget_ends_it',
    ),
    (
        '21 own posteriors that stay',
        'privacy.aggregation:PrivateNodeClassifier._erase',
        ('self._own.index_fill(0, nodes, even)', 'self._own'),
        f'{COVERED}::test_rows_of_who_was_removed_are_gone_and_nobody_elses',
    ),
    (
        '22 a later kappa on the lists of the release',
        'privacy.coverage:Coverage._present',
        ('return graph', "return CSRGraph.from_data(data).to('cpu')"),
        f'{COVERED}::test_the_graph_may_be_given_with_or_without_who_was_'
        'removed',
    ),
    (
        '23 a second fit that spends nothing',
        'account:ReleaseAccount.spend',
        (
            'self._spent.append(float(mu))',
            'len(self._spent) < 3 and self._spent.append(float(mu))',
        ),
        f'{COVERED}::test_who_was_removed_is_refused_again_and_in_the_next_'
        'release',
    ),
    (
        '24 a write-ahead log',
        'erasure.store:_PRAGMAS',
        ('journal_mode = TRUNCATE', 'journal_mode = WAL'),
        f'{DESK}::test_nothing_stays_in_the_file[5]',
    ),
    (
        '25 names that stay where a request is refused',
        'erasure.batches:Batches._close_request',
        (
            'self._sql(queries.CLOSE, status',
            "self._sql(queries.CLOSE.replace('= NULL', '= names') "
            "if status == 'cancelled' else queries.CLOSE, status",
        ),
        f'{DESK}::test_nothing_stays_in_the_file[5]',
    ),
    (
        '26 a retry that removes twice',
        'erasure.batches:Batches._perform',
        (
            'done = self._recorded(name, dict(self._sql(queries.TASKS, '
            'batch)))',
            'done = []',
        ),
        'erasure/test_desk_three.py::test_a_stop_at_any_write_loses_no_'
        'promise[2-0]',
    ),
    (
        '26 a retry that fails as what it names is gone',
        'erasure.places:Place.has_removed',
        ('return any(', 'return False and any('),
        f'{DESK}::test_what_is_gone_is_done_and_what_never_was_is_refused',
    ),
    (
        '27 a month of thirty days',
        'erasure.fields:due',
        ('months, days = PERIODS[regulation]', 'months, days = 0, 30'),
        f'{DESK}::test_a_month_ends_with_the_same_date',
    ),
    (
        '28 names in what is published',
        'erasure.batches:Batches._refuse',
        (r"re.sub(r'\d+', '#', str(why))", 'str(why)'),
        f'{DESK}::test_an_error_of_a_model_goes_with_its_request',
    ),
]
CODE = """
import importlib, json, os, sys, tempfile
import pytest
sys.path.insert(0, '.')
from planting import planted
# Once for all, as pytest: each fault has a fork of this.
import pyg_trust.certificates, pyg_trust.erasure, pyg_trust.privacy
import pyg_trust.unlearning
def run(where, change, test):
    module, _, path = where.partition(':')
    module = importlib.import_module(f'pyg_trust.{module}')
    *above, name = path.split('.')
    for each in above:
        module = getattr(module, each)
    there = vars(module)[name]
    arguments = ['-qx', '-n0', '-p', 'no:cacheprovider', test]
    if isinstance(there, tuple):
        made = tuple(each.replace(*change) for each in there)
        assert made != there
        setattr(module, name, made)
        return pytest.main(arguments)
    with planted(getattr(there, '__func__', there), *change):
        return pytest.main(arguments)
ended = {}
for name, *row in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile('w+') as out:
        pid = os.fork()
        if pid == 0:
            code = 9
            try:
                os.dup2(out.fileno(), 1)
                code = int(run(*row))
                sys.stdout.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        ended[name] = code, out.read()
print(json.dumps(ended))
"""


@needs.fork
def test_a_planted_fault_turns_its_test_red():
    done = warm.run('-c', CODE, json.dumps(FAULTS), cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert [*ended] == [row[0] for row in FAULTS]
    for name, (code, printed) in ended.items():
        assert code == pytest.ExitCode.TESTS_FAILED, (name, printed)
        assert '1 failed' in printed, (name, printed)


def test_every_fault_is_numbered():
    planted = {int(row[0].split()[0]) for row in FAULTS}
    said = {int(each) for each in re.findall(r'\b(\d+) [a-z]', __doc__)}
    assert planted.isdisjoint(said)
    assert planted | said == {*range(1, 29)}
