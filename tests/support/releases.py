"""What the tests of the converters share: damage to the files of a release, and what a refused conversion leaves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


LONG = 2000  # characters, more than an error has
Damage = Callable[[Path], object]  # to a folder


def remove(*names: str) -> Damage:
    return lambda release: [(release / name).unlink() for name in names]


def cut(name: str, kept: float = 0.5) -> Damage:
    def change(release: Path) -> None:
        content = (release / name).read_bytes()
        (release / name).write_bytes(content[: int(len(content) * kept)])

    return change


def write(name: str, content: str | bytes) -> Damage:
    content = content.encode() if isinstance(content, str) else content
    return lambda release: (release / name).write_bytes(content)


def write_checkpoint(tf, variables: dict[str, np.ndarray], prefix: Path) -> None:
    """As the released trainings did with TensorFlow: a graph of named variables, a session, a Saver."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in variables.items():
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(prefix))


def assert_refused(
    convert: Callable[..., object], release: Path, error: type[Exception] | tuple, message: str, **flags: object
) -> None:
    """Raises `error`, short and of one line, and leaves nothing new beside the release."""
    before = sorted(release.parent.rglob("*"))
    with pytest.raises(error, match=message) as raised:
        convert(release, **flags)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < LONG
    assert sorted(release.parent.rglob("*")) == before
