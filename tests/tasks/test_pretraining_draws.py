"""Random numbers and shuffled orders without a state."""

import numpy as np
import pytest
from scipy import stats

from elmo_gpt_bert.tasks.pretraining.draws import permute, shuffle_epochs, uniform


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 65537])
def test_a_shuffled_order_has_each_number_once(size):
    assert np.array_equal(np.sort(permute(np.arange(size), size, 3, 1)), np.arange(size))


def test_all_orders_of_a_few_numbers_are_about_equally_likely():
    orders = [tuple(permute(np.arange(4), 4, key)) for key in range(2400)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 1e-3


def test_a_large_order_is_a_bijection_wherever_it_is_looked_at():
    for size in (10**9, 2**40 + 1, 2**62 - 1, 2**62):
        index = np.concatenate([np.arange(2000), size - 1 - np.arange(2000)])
        places = permute(index, size, 5)
        assert len(np.unique(places)) == len(index) and places.min() >= 0 and places.max() < size
        assert stats.kstest(places / size, "uniform").pvalue > 1e-3


def test_a_shuffled_order_is_no_longer_the_old_one():
    size = 20_000
    places = permute(np.arange(size), size, 11)
    assert stats.kstest(np.diff(places), np.diff(np.random.default_rng(0).permutation(size))).pvalue > 1e-3
    assert abs(np.corrcoef(np.arange(size), places)[0, 1]) < 4 / size**0.5
    cycles_of_length_one = (places == np.arange(size)).sum()  # Poisson(1)
    assert cycles_of_length_one < 8


def test_another_key_gives_another_order():
    keys = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (-1,), (2**64,), (2**63,)]
    orders = {tuple(permute(np.arange(100), 100, *key)) for key in keys}
    assert len(orders) == len(keys) - 1  # keys count modulo 2^64


def test_any_part_of_an_order_is_computed_alone():
    whole = permute(np.arange(999), 999, 2)
    assert np.array_equal(permute(np.array([[5, 998], [0, 5]]), 999, 2), whole[[[5, 998], [0, 5]]])
    assert permute(np.array([], dtype=np.int64), 999, 2).shape == (0,)


@pytest.mark.parametrize(("index", "size"), [(5, 5), (-1, 5), (0, 0), (0, 2**62 + 1)])
def test_numbers_outside_of_the_order_are_refused(index, size):
    with pytest.raises(ValueError, match="size"):
        permute(np.array([index]), size)


def test_each_epoch_is_shuffled_anew_also_within_one_call():
    samples = np.arange(300)
    places = shuffle_epochs(samples, 100, 7).reshape(3, 100)
    assert all(np.array_equal(np.sort(epoch), np.arange(100)) for epoch in places)
    assert (places[0] == places[1]).sum() < 10 and (places[1] == places[2]).sum() < 10
    assert np.array_equal(shuffle_epochs(samples[250:], 100, 7), places.ravel()[250:])


def test_random_numbers_are_uniform():
    numbers = uniform(np.arange(1000), 300, 1)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
    assert stats.chisquare(np.bincount((numbers * 2**53).astype(np.int64).ravel() % 256)).pvalue > 1e-3  # lowest bits


def test_random_numbers_of_neighbours_are_independent():
    numbers = uniform(np.arange(400), 400, 1, 0)
    others = {
        "key": uniform(np.arange(400), 400, 1, 1),
        "first key": uniform(np.arange(400), 400, 2, 0),
        "sample": np.roll(numbers, 1, axis=0),
        "column": np.roll(numbers, 1, axis=1),
        "diagonal": np.roll(numbers, (1, -1), axis=(0, 1)),
    }
    for name, other in others.items():
        cells = np.histogram2d(numbers.ravel(), other.ravel(), bins=16)[0]
        assert stats.chisquare(cells.ravel()).pvalue > 1e-3, name
        assert abs(np.corrcoef(numbers.ravel(), other.ravel())[0, 1]) < 4.5 / 400, name


def test_random_numbers_depend_on_key_sample_and_column_only():
    numbers = uniform(np.arange(50), 20, 4, 2)
    assert np.array_equal(uniform(np.array([33, 7]), 5, 4, 2), numbers[[33, 7], :5])
    assert uniform(np.array([], dtype=np.int64), 5, 4).shape == (0, 5)
    assert uniform(np.arange(3), 0, 4).shape == (3, 0)
