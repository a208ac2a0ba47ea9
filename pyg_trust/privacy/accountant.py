"""Opacus accountants of sampling without replacement, replace-one."""

from typing import Any

from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant

from pyg_trust.functional.dp import (
    METHODS,
    calibrate_lam,
    check_q,
    lam_from_opacus,
    lam_to_opacus,
    max_steps,
    wor_epsilon,
)

RELATION = 'replace-one-feature-row'
SAMPLING = 'uniform-without-replacement'


class WORAccountant(IAccountant):
    r"""Counts steps that draw subgraphs without replacement.

    The relation and the assumptions are those of
    :mod:`pyg_trust.functional.dp`: one row of the features is replaced; a
    constant number :math:`m` of :math:`M` node-disjoint subgraphs is drawn
    uniformly without replacement, afresh in every step; gradients are clipped
    per subgraph. An epoch's shuffle and Poisson sampling are *not* covered.

    :obj:`noise_multiplier` is Opacus' :math:`\sigma / C`, and is halved
    before it is accounted for, since replacing a row moves the sum by up to
    :math:`2C`. :obj:`history` holds :obj:`(noise_multiplier, sample_rate,
    steps)`, as Opacus' accountants do. Opacus' own accountants, given the
    same history, are for adding or removing a row under Poisson sampling and
    understate this mechanism's :math:`\epsilon` by a factor of two or more.

    Use :class:`PLDAccountant` or :class:`RDPAccountant`.
    """

    history: list[tuple[float, float, int]]

    def __init__(self) -> None:
        self.history = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        r"""Counts one step.

        Args:
            noise_multiplier (float): Opacus' :math:`\sigma / C`.
            sample_rate (float): :math:`m / M`, with the actual :math:`M` of
                this step's subgraphs.

        Raises:
            TypeError, ValueError: if a number is none or out of range; the
                history is then as before.
        """
        line = _checked((noise_multiplier, sample_rate, 1))
        self.history = _merged([*self.history, line])

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        r"""The :math:`\epsilon` of all steps so far.

        Args:
            delta (float): in :math:`(0, 1)`.
            *args (Any): refused.
            **kwargs (Any): refused.
        """
        if args or kwargs:
            raise TypeError(
                f"'get_epsilon' takes 'delta' alone (got {args} and {kwargs})"
            )
        history = [(lam_from_opacus(z), q, n) for z, q, n in self.history]
        return wor_epsilon(history, delta, self.mechanism())

    def remaining_steps(
        self,
        epsilon: float,
        delta: float,
        *,
        noise_multiplier: float,
        sample_rate: float,
    ) -> int:
        r"""How many more steps stay within a budget.

        Args:
            epsilon (float): the budget of everything, also what was spent.
            delta (float): in :math:`(0, 1)`.
            noise_multiplier (float): of the steps to come.
            sample_rate (float): of the steps to come.
        """
        return max_steps(
            epsilon,
            delta,
            check_q(sample_rate, 'sample_rate'),
            lam_from_opacus(noise_multiplier),
            method=self.mechanism(),
            history=[(lam_from_opacus(z), q, n) for z, q, n in self.history],
        )

    @classmethod
    def noise_multiplier_for(
        cls, epsilon: float, delta: float, *, sample_rate: float, steps: int
    ) -> float:
        r"""Opacus' noise multiplier of steps that stay within a budget.

        Never above :obj:`epsilon`, and within one percent of it (see
        :func:`pyg_trust.functional.calibrate_lam`).

        Args:
            epsilon (float): the budget.
            delta (float): in :math:`(0, 1)`.
            sample_rate (float): :math:`m / M`.
            steps (int): the number of steps.
        """
        rate = check_q(sample_rate, 'sample_rate')
        return lam_to_opacus(
            calibrate_lam(epsilon, delta, rate, steps, method=cls.mechanism())
        )

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def state_dict(self, destination: Any = None) -> Any:
        """The history, the mechanism, the relation and the sampling.

        Args:
            destination (dict, optional): what to write to.
                (default: :obj:`None`)
        """
        state = super().state_dict(destination)
        state['relation'] = RELATION
        state['sampling'] = SAMPLING
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Takes over a history that continues the present one.

        Args:
            state_dict (dict): of :meth:`state_dict`.

        Raises:
            ValueError: if something is missing, the mechanism, the relation
                or the sampling differs, a number is out of range, or the
                history does not begin with the present one: what was spent
                can't be taken back. Nothing is changed then.
        """
        expected = {
            'mechanism': self.mechanism(),
            'relation': RELATION,
            'sampling': SAMPLING,
        }
        for name in (*expected, 'history'):
            if not state_dict or name not in state_dict:
                raise ValueError(f"the state needs an entry '{name}'")
        for name, value in expected.items():
            if state_dict[name] != value:
                raise ValueError(
                    f"the state's '{name}' needs to be {value!r} (got "
                    f'{state_dict[name]!r})'
                )
        try:
            # Merged as `step` does, whoever wrote it.
            loaded = _merged(
                [_checked(line) for line in state_dict['history']]
            )
        except TypeError as error:
            raise ValueError(
                "the state's 'history' needs to hold triples of noise "
                f'multiplier, sample rate and steps: {error}'
            ) from error
        if not _continues(loaded, _merged(self.history)):
            raise ValueError(
                "the state's history does not continue the present one: what "
                "was spent can't be taken back"
            )
        self.history = loaded


class PLDAccountant(WORAccountant):
    """Accounts with privacy loss distributions: tighter, the default.

    See :func:`pyg_trust.functional.wor_epsilon_pld`.
    """

    @classmethod
    def mechanism(cls) -> str:
        """The name in Opacus' registry."""
        return 'pld_wor'


class RDPAccountant(WORAccountant):
    """Accounts with Rényi DP, as Ayle et al. 2023 do.

    See :func:`pyg_trust.functional.wor_epsilon_rdp`.
    """

    @classmethod
    def mechanism(cls) -> str:
        """The name in Opacus' registry."""
        return 'rdp_wor'


def create_accountant(mechanism: str = 'pld_wor') -> WORAccountant:
    """Makes an accountant by its name.

    Args:
        mechanism (str): :obj:`'pld_wor'` or :obj:`'rdp_wor'`.
            (default: :obj:`'pld_wor'`)

    Example:
        >>> accountant = create_accountant('pld_wor')
        >>> for _ in range(50):
        ...     accountant.step(noise_multiplier=8.0, sample_rate=0.4)
        >>> 3.4 < accountant.get_epsilon(delta=1e-6) < 4.1
        True
    """
    for kind in (PLDAccountant, RDPAccountant):
        if kind.mechanism() == mechanism:
            return kind()
    raise ValueError(
        f"'mechanism' needs to be one of {METHODS} (got {mechanism!r})"
    )


def register_accountants() -> None:
    """Makes both known to ``opacus.accountants.create_accountant``.

    Importing pyg_trust does not: it would change Opacus for everyone. Calling
    it again changes nothing. Opacus' own engine samples by Poisson or by
    epoch, neither of which these accountants cover.
    """
    for kind in (PLDAccountant, RDPAccountant):
        register_accountant(kind.mechanism(), kind, force=True)


def _checked(line: Any) -> tuple[float, float, int]:
    noise, rate, steps = line
    lam_from_opacus(noise)
    check_q(rate, 'sample_rate')
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(
            f"'steps' needs to be an integer (got {type(steps).__name__})"
        )
    if steps < 1:
        raise ValueError(f"'steps' needs to be at least 1 (got {steps})")
    return float(noise), float(rate), steps


def _merged(
    history: list[tuple[float, float, int]],
) -> list[tuple[float, float, int]]:
    merged: list[tuple[float, float, int]] = []
    for noise, rate, steps in history:
        if merged and merged[-1][:2] == (noise, rate):
            steps += merged.pop()[2]
        merged.append((noise, rate, steps))
    return merged


def _continues(
    longer: list[tuple[float, float, int]],
    shorter: list[tuple[float, float, int]],
) -> bool:
    if not shorter:
        return True
    last = len(shorter) - 1
    return (
        len(longer) > last
        and longer[:last] == shorter[:last]
        and longer[last][:2] == shorter[last][:2]
        and longer[last][2] >= shorter[last][2]
    )
