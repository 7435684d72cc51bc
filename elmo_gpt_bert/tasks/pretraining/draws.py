"""Random numbers and shuffled orders as functions of their keys. Nothing here has a state.

A generator of random numbers has a state, which a checkpoint must save and several processes must share. Here each
number is a hash of what it is for: the seed, the use, the sample and the column. A run that resumes at any sample, and
any number of processes, draws the same numbers.
"""

import numpy as np


# SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014): a Weyl sequence with an
# odd step near 2^64 / golden ratio, each term of which is mixed by the finaliser below.
STEP = np.uint64(0x9E3779B97F4A7C15)
MASK = 2**64 - 1
ROUNDS = 8
LARGEST_SIZE = 2**62


def permute(index: np.ndarray, size: int, *key: int) -> np.ndarray:
    """The places of `index` in an order of 0 ... size - 1 that the key shuffles. Needs no memory for the order.

    A Feistel network over the bits of size - 1 is a bijection of the next power of two. A value that lands outside of
    the range goes through the network again until it is inside (cycle walking; Black and Rogaway, "Ciphers with
    Arbitrary Finite Domains", 2002), twice at most on average.

    Args:
        index: integers from 0 to size - 1, of any shape.
        size: from 1 to 2^62.
        key: integers, such as a seed and an epoch.

    Returns:
        int64 of the shape of `index`. For one size and key, different numbers get different places.
    """
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"size is {size}, but a shuffled order has from 1 to 2^62 places.")
    index = np.asarray(index)
    if index.size and not 0 <= index.min() <= index.max() < size:
        raise ValueError(f"index has numbers from {index.min()} to {index.max()}, but must be below size {size}.")
    places = index.astype(np.uint64).ravel()
    round_keys = _sequence(_digest(key), ROUNDS)[0]
    bits = (size - 1).bit_length()
    outside = np.arange(len(places))
    while len(outside):
        places[outside] = _feistel(places[outside], bits, round_keys)
        outside = outside[places[outside] >= np.uint64(size)]
    return places.astype(np.int64).reshape(index.shape)


def shuffle_epochs(samples: np.ndarray, size: int, *key: int) -> np.ndarray:
    """(N,) sample numbers, epoch * size + index -> (N,) the places of `index`, shuffled anew in each epoch."""
    epochs, index = np.divmod(np.asarray(samples, dtype=np.int64), size)
    places = np.empty_like(index)
    for epoch in np.unique(epochs):
        places[epochs == epoch] = permute(index[epochs == epoch], size, *key, int(epoch))
    return places


def uniform(samples: np.ndarray, count: int, *key: int) -> np.ndarray:
    """(N,) sample numbers -> (N, count) random numbers in [0, 1), each a hash of the key, its sample and its column.

    The first columns are the same for any `count`. Multiples of 2^-53.
    """
    streams = _mix(np.asarray(samples).astype(np.uint64) ^ _digest(key))
    return (_sequence(streams, count) >> np.uint64(11)) * 2.0**-53


def _mix(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, a bijection of 64-bit integers each bit of which depends on all bits."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _digest(key: tuple[int, ...]) -> np.ndarray:
    """(1,) a hash of the integers, their order and their number."""
    digest = np.full(1, len(key), dtype=np.uint64)
    for part in key:
        digest = _mix(_mix(digest + STEP) ^ np.uint64(part & MASK))
    return digest


def _sequence(streams: np.ndarray, count: int) -> np.ndarray:
    """(N,) the states of N generators -> (N, count) their next numbers."""
    return _mix(streams[:, None] + STEP * np.arange(1, count + 1, dtype=np.uint64))


def _feistel(values: np.ndarray, bits: int, round_keys: np.ndarray) -> np.ndarray:
    """A bijection of the integers of `bits` bits: a hash of each half in turn changes the other half."""
    low_bits = np.uint64(bits // 2)
    low_mask, high_mask = (np.uint64(2**width - 1) for width in (bits // 2, bits - bits // 2))
    low, high = values & low_mask, values >> low_bits
    for even_key, odd_key in round_keys.reshape(-1, 2):
        high = high ^ (_mix(low ^ even_key) & high_mask)
        low = low ^ (_mix(high ^ odd_key) & low_mask)
    return (high << low_bits) | low
