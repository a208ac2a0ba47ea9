"""The guarantee of private training, with every assumption."""

import math
from collections.abc import Iterator
from typing import Any

from pyg_trust.loader import StepLoader
from pyg_trust.noise import NOISES, SEEDED
from pyg_trust.privacy.accountant import (
    ACCOUNTANTS,
    GROUP,
    GROUP_WOR,
    create_accountant,
    epsilon_over_time,
)
from pyg_trust.privacy.accounting import ORDERS, rdp_epsilon
from pyg_trust.privacy.exact import clip
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import Guarantee, fingerprint_model, provenance
from pyg_trust.report.charts import Chart
from pyg_trust.report.claimed import ClaimedReport, claimed
from pyg_trust.verify.claims import outwards
from pyg_trust.verify.claims_privacy import (
    CONTENTS,
    LEDGER,
    NO_LEDGER,
    RUN_ALONE,
    TRAINING,
    protected_unit,
)
from pyg_trust.verify.noise import SHIFT

__all__ = ['PrivacyReport']

NOISELESS = (
    'NOT PRIVATE: this run added no noise (noise_multiplier=0), to debug a '
    'training'
)
# Numbers of persons together that reports have a line for.
_TOGETHER = (2, 5)
APART = (
    'the model treats subgraphs apart on every data, as it did on the random '
    'features that it was tested with, and its attributes and code stay as '
    'they were then'
)


def vouched(mechanism: str) -> str:
    """Return the user's accountant of an epsilon; '' for a built-in one."""
    own = ACCOUNTANTS.is_own(mechanism)
    return ACCOUNTANTS.note(mechanism) if own else ''


def by_user(mechanism: str) -> str:
    """Phrase that names the user's accountant; '' for a built-in one."""
    who = vouched(mechanism)
    return f', as says {who}' if who else ''


@claimed(
    'private training',
    renamed={'checked': 'isolation'},
    processes='the number of processes that trained together',
    rho='the share by which the noise is larger than the account counts, to '
    'pay for rounding',
    epsilon_renyi='a second bound of epsilon, by Rényi DP, to compare; None '
    'if there is none',
    assumptions='sentences: what the guarantee assumes and does not cover',
    checked='sentences: how the training was checked',
    data_sha256='a hash of the public part of the data',
    weights_sha256='SHA-256 of the released weights; empty if something else '
    'than private steps changed them',
    provenance='versions of packages and arguments; no seeds',
)
class PrivacyReport(ClaimedReport):
    """The differential privacy of a training, and its assumptions.

    A *unit* is what is clipped as one: a subgraph, a graph or a person.
    """

    def guarantee(self) -> Guarantee:
        """Return the differential privacy of the released weights."""
        if not self.noise_multiplier:
            raise ValueError(f'{NOISELESS}: there is no guarantee to state')
        return super().guarantee()

    def _says(self) -> dict[str, Any]:
        checked = self.checked
        if self.epsilon_renyi is not None:
            checked = (
                *checked,
                f'epsilon was computed from {self.steps} recorded steps in '
                f'two ways: {outwards(self.epsilon)} by {self.mechanism}, '
                f'which is stated, and at most {outwards(self.epsilon_renyi)} '
                'by the Rényi divergences of the steps',
            )
        return {
            'vouched': vouched(self.mechanism),
            'assumptions': self.assumptions,
            'data_sha256': self.data_sha256,
            'origin': self.provenance,
            'checked': checked,
            'weights_sha256': self.weights_sha256,
        }

    def chart(self) -> Chart:
        """Draw epsilon over the steps."""
        last = max(len(self.history) - 1, 1)
        steps = [-(-self.steps * i // last) for i in range(len(self.history))]
        limit = self.target_epsilon
        of = '' if limit is None else f' of {limit:.4g}'
        return Chart(
            f'epsilon {outwards(self.epsilon)}{of} is spent after '
            f'{self.steps} steps, at delta {self.delta:g}',
            lines={'epsilon': (steps, self.history)},
            xlabel='steps',
            ylabel='epsilon',
            limit=math.inf if limit is None else limit,
        )

    def explain(self) -> str:
        """Explain the guarantee in words."""
        if not self.noise_multiplier:
            return f'{NOISELESS}; epsilon is infinite.'
        rates = ', '.join(f'{q:.4g}' for q, _ in self.sample_rates) or 'none'
        exact = ', in exact arithmetic' * (self.arithmetic == 'exact')
        lines = [
            *([SEEDED + '.'] if self.seeded else []),
            f'The weights after each of {self.steps} steps, all together, are '
            f'({outwards(self.epsilon)}, {outwards(self.delta, 6)})-'
            f'differentially private{exact}: '
            'whoever sees them can hardly distinguish one from any other '
            f'{protected_unit(self.neighboring)}.',
            f'Neighbours are data that differ by "{self.neighboring}". '
            f'{self._draw()}, at a rate of {rates}; {self._clip()}; sums; and '
            'adds Gaussian noise of the standard deviation '
            f'{self.noise_std:.4g}. Neighbours move the sum by at most '
            f'{self.sensitivity:.4g}.',
            *self._of_persons(),
            f'Accounted for by {self.mechanism!r}{by_user(self.mechanism)}. '
            'This holds if, and covers only what follows:',
            *(f'- {line}' for line in self.assumptions),
        ]
        return '\n'.join(lines)

    def _of_persons(self) -> Iterator[str]:
        if not self.persons:
            return
        yield f'Not covered: {"; ".join(self.guarantee().not_covered)}.'
        for k, epsilon in self.together:
            yield (
                f'For {k} persons together, such as a household, epsilon is '
                f'{outwards(epsilon)} at the same delta.'
            )

    def _draw(self) -> str:
        seen = ''
        if self.units_per_row > 1:
            seen = f'; at most {self.units_per_row} of all units see a row'
        if self.sampling == 'poisson':
            return (
                f'Each step draws units ({self.unit}) by Poisson sampling '
                f'and divides by {self.batch_size}{seen}'
            )
        return (
            f'Each step draws {self.batch_size} units ({self.unit}), '
            f'{self.sampling}{seen}'
        )

    def _clip(self) -> str:
        norm = f'{self.max_grad_norm:.4g}'
        if self.clipping == 'automatic':
            return f'scales the gradient of each to just below {norm}'
        if self.clipping == 'adaptive':
            return (
                'clips the gradient of each to a norm that follows a noisy '
                f'quantile, in the same account (now {norm})'
            )
        return f'clips the gradient of each to {norm}'


def describe(engine: Any, delta: float | None) -> PrivacyReport:
    """Make the report of :meth:`PrivacyEngine.report`."""
    if delta is None:
        delta = engine.target_delta
    if delta is None:
        raise ValueError(
            "'delta' needs to be given if there is no target: report(1e-5)"
        )
    loader, step = engine._loader, engine._step
    taken = engine.steps - engine._start
    rates: dict[float, int] = {}
    for _, rate, count in engine.accountant.history:
        rates[rate] = rates.get(rate, 0) + count
    moves = loader.terms * (1 if loader.form == 'withdraw' else 2)
    persons = loader.setting().get('persons', {})
    notes = [*engine._leaks, *step.notes()]
    mechanism = engine.accountant.mechanism()
    if ACCOUNTANTS.is_own(mechanism):
        notes.append(
            f'NOT CHECKED: epsilon{by_user(mechanism)}: its sampling, its '
            'relation and its proof are of whoever wrote it'
        )
    kind = type(loader)
    if kind.__module__.split('.')[0] != __name__.split('.')[0]:
        notes.append(
            'NOT CHECKED: how units are made and drawn, and which data are '
            f'neighbours: the loader is {kind.__module__}.'
            f'{kind.__qualname__}, which is not of this package'
        )
    isolation = _isolation(engine)
    notes.append(RUN_ALONE + isolation)
    if isolation != 'always':
        notes.append(APART)
    why = tuple(step.inexact())
    if why:
        notes.append(
            'in exact arithmetic are the noise and the sums, and not the '
            f'gradients that are summed: {"; ".join(why)}'
        )
    else:
        notes.append(
            'in exact arithmetic a gradient is what the kernels of this '
            'machine compute of it, by a way that does not depend on values'
        )
    if taken < engine.steps:
        of = (
            'weights that start from those of the call of make_private'
            if engine._continued is None
            else f'weights of a checkpoint of {engine._continued} steps'
        )
        notes.append(
            f'of the {engine.steps} steps on the account this process took '
            f'{taken}, on {of}; the others count, as weights of '
            'earlier runs may have been seen'
        )
    if engine._group.size > 1:
        notes.append(
            f'{engine._group.size} processes trained together; they and the '
            'network between them see clipped sums without noise'
        )
    return PrivacyReport.of(
        epsilon=engine.get_epsilon(delta),
        delta=delta,
        target_epsilon=engine.target_epsilon,
        steps=engine.steps,
        neighboring=loader.relation,
        sampling=engine.accountant.sampling,
        mechanism=mechanism,
        unit=loader.unit,
        batch_size=loader.subgraphs_per_batch,
        sample_rates=tuple(rates.items()),
        max_grad_norm=engine.max_grad_norm,
        units_per_row=loader.terms,
        sensitivity=moves * engine.max_grad_norm,
        noise_multiplier=engine.noise_multiplier,
        grid_exponent=-SHIFT,
        noise_std=engine._gradient_multiplier * engine.max_grad_norm,
        arithmetic=_arithmetic(engine, why),
        isolation=isolation,
        rho=0.0
        if engine.noiseless
        else clip.noise_grid(
            engine._gradient_multiplier,
            engine.max_grad_norm,
            sum(p.numel() for p in step.parameters),
        )[1],
        clipping=engine.clipping,
        processes=engine._group.size,
        seeded=engine.seeded,
        ledger_head=engine.ledger_head,
        assumptions=_assumptions(engine, notes),
        data_sha256=loader.fingerprint(),
        provenance=provenance(
            loss_reduction=engine.loss_reduction,
            sampler=loader.setting(),
            ledger=engine._ledger_path is not None,
        ),
        weights_sha256=''
        if step.moved()
        else fingerprint_model(step.module.state_dict()),
        history=epsilon_over_time(engine.accountant, delta),
        account=tuple(engine.accountant.history),
        pure_epsilon=engine.accountant.pure_epsilon,
        epsilon_renyi=_renyi(engine.accountant, delta),
        checked=_checks(engine),
        persons=persons,
        together=_together(engine.accountant, loader, delta)
        if persons
        else (),
    )


def _together(
    account: Any, loader: StepLoader, delta: float
) -> tuple[tuple[int, float], ...]:
    # Several persons are in as many units: the account of egos counts them.
    if ACCOUNTANTS.is_own(account.mechanism()):
        return ()
    if loader.resample_every and loader.sampling != 'poisson':
        # Partitions differ in size, and a group's account takes one size.
        return ()
    # How many persons there are is private where one more is a neighbour.
    known = loader.form != 'withdraw'
    return tuple(
        (k, epsilon_of_units(account, loader, delta, k))
        for k in _TOGETHER
        if not (known and k > loader.num_subgraphs)
        and all(z >= k / 10 for z, *_ in account.history)
    )


def epsilon_of_units(
    account: Any, loader: StepLoader, delta: float, k: int
) -> float:
    """Compute epsilon of several units together, by group privacy."""
    # Coins cost the same among any number of units.
    known = loader.form != 'withdraw'
    number = max(k, loader.num_subgraphs) if known else max(k, *_TOGETHER)
    kind = GROUP if loader.sampling == 'poisson' else GROUP_WOR
    many = create_accountant(kind, num_roots=number, occurrences=k)
    many.history = list(account.history)
    return float(many.get_epsilon(delta) + k * account.pure_epsilon)


def covered(
    engine: Any, loader: StepLoader, request: RemovalRequest, delta: float
) -> float:
    """Return the epsilon at which the weights have forgotten items."""
    if engine.seeded:
        raise ValueError(
            f'{SEEDED}, so it covers nothing: fit again without the requested '
            'items'
        )
    if ACCOUNTANTS.is_own(engine.accountant.mechanism()):
        raise ValueError(
            'a registered accountant has no epsilon for several units: fit '
            'again without the requested items'
        )
    if loader.relation == CONTENTS:
        raise ValueError(
            "'request' can't be covered by weights that are private in the "
            'contents of persons: with whom one shares rows stays in them: '
            'fit again without what is named'
        )
    noun = loader.relation.rsplit('-', 1)[-1]
    wanted = {'row': 'features', 'graph': 'graphs'}.get(noun, 'persons')
    named = request.to_dict()
    field = {'features': 'features', 'graphs': 'whole', 'persons': 'nodes'}
    only = all(set(part) == {field[wanted]} for part in named.values())
    if not only or (wanted != 'graphs' and [*named] != ['0']):
        raise ValueError(
            f"'request' needs to name {wanted} alone, of which the release "
            f'under {loader.relation!r} is private: fit again without the rest'
        )
    if {*request._units} - {loader.owned_by}:
        raise ValueError(
            "'request' needs to name persons of the privacy unit that was "
            'trained on (got those of another unit, who may be several)'
        )
    part = request.parts.get(0)
    k = len(named)
    if part is not None and wanted != 'graphs':
        k = len(part.features or part.nodes)
    k *= engine.accountant.occurrences
    most = min((int(10 * z) for z, *_ in engine.accountant.history), default=k)
    if k > most:
        raise ValueError(
            f"'request' needs to name at most {most} units, as the noise is "
            f'(got {k}): fit again without them'
        )
    return epsilon_of_units(engine.accountant, loader, delta, k)


def _arithmetic(engine: Any, why: tuple[str, ...]) -> str:
    own = ACCOUNTANTS.is_own(engine.accountant.mechanism())
    if own or NOISES.is_own(engine._noise_kind):
        return 'float'
    return 'sums' if why else 'exact'


def _isolation(engine: Any) -> str:
    step = engine._step
    steps = engine.steps
    if engine._continued is None:
        steps -= engine._start
    steps -= engine._releases
    alone = step.constructed + step.checked
    if step.disagrees:
        return 'not'
    if step.constructed == steps and step.isolation == 'construction':
        return 'always'
    return f'sampled ({alone} of {steps})' if alone else 'not'


def _renyi(accountant: Any, delta: float) -> float | None:
    # A looser bound that shares no code with the distributions of losses.
    if not accountant.history or ACCOUNTANTS.is_own(accountant.mechanism()):
        return None
    orders = ORDERS[::4]
    return rdp_epsilon(orders, accountant.rdp(orders), delta)


def _checks(engine: Any) -> tuple[str, ...]:
    # Checks that held, as training would have stopped otherwise.
    step = engine._step
    lines = [
        'before the first step the model ran on random features: a change of '
        'one subgraph moved the gradient of no other',
    ]
    if engine.steps == engine._start:
        return (*lines, 'this process has taken no private step')
    lines.append(
        'at every step of this process the clipped sum was finite and of the '
        'units that were drawn'
    )
    if engine._ledger is not None:
        lines.append('each step was on the ledger before its noise was drawn')
    if step.intact():
        lines.append(
            'the weights are those of the last step: nothing else has changed '
            'them'
        )
    return tuple(lines)


def _assumptions(engine: Any, notes: list[str]) -> tuple[str, ...]:
    # The assumptions of a guarantee, and what it does not cover.
    noise = engine._noise_kind
    lines = [
        *TRAINING,
        *engine._loader.assumptions(),
        'the weights that the first step starts from were not computed from '
        'private data',
        'buffers and attributes of the model, and what the data has besides '
        'rows of nodes and edges, hold nothing of private data (tables with a '
        'row per node, as many numbers as there are units, and what is looked '
        'up by names or places of nodes, are refused)',
        'the loss reads private data by the batch and the outputs alone, and '
        'carries nothing private from step to step, also not a number that a '
        'model kept (what else layers keep of a call is put back after its '
        'step); it reads no memory that it did not write (torch.empty), nor '
        'by its address',
    ]
    if engine.seeded:
        lines.insert(0, SEEDED)
    elif NOISES.is_own(noise):
        lines.append(
            f'NOT CHECKED: noise and batches are of {NOISES.note(noise)}: '
            'that nobody can predict a bit of it'
        )
    else:
        lines.append(
            "noise and batches are of the operating system's cryptographic "
            'generator; noise is exactly rounded, on a public grid'
        )
    lines.append(NO_LEDGER if engine._ledger is None else LEDGER)
    return (*lines, *notes)
