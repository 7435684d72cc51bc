"""Whether our scores over seeds agree with a published figure.

The figure is of a run that we have not seen, and the question is whether it could be one more of ours. Let n seeds
have the mean m and the standard deviation s. With a probability of 95 %, a further run lies within
m +- t s sqrt(1 + 1/n), where t is the 97.5th percentile of Student's distribution with n - 1 degrees of freedom: the
prediction interval of a normal distribution. It reaches 5.0 s from the mean for three seeds, 3.0 s for five, and 2.4 s
for ten.
"""

import math
from collections.abc import Sequence

from scipy.stats import t

from elmo_gpt_bert.training.results import spread


CONFIDENCE = 0.95
ROUNDING = 0.05  # publications round to one decimal


def verdict(scores: Sequence[float], figure: float) -> str:
    """What the table says of these scores, one for each seed, and a published figure."""
    if len(scores) < 2:
        return "one run: no verdict"
    difference = spread(scores)["mean"] - figure
    if abs(difference) <= reach(scores) + ROUNDING:
        return "within the spread"
    return f"{'above' if difference > 0 else 'below'} by {abs(difference):.1f}"


def reach(scores: Sequence[float]) -> float:
    """How far from the mean of at least two scores a further one may lie."""
    count = len(scores)
    percentile = float(t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return percentile * spread(scores)["std"] * math.sqrt(1 + 1 / count)
