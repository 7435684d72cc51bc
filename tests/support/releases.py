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


def assert_a_folder_in_use_is_kept(convert: Callable[[Path], object], release: Path) -> None:
    """The release is converted into the folder beside it that already holds something."""
    output = release.parent / "converted"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    assert_refused(convert, release, FileExistsError, "^output .*converted already holds something")
    assert (output / "notes.txt").read_text() == "mine"


def assert_a_full_disk_leaves_nothing(convert: Callable[[Path], object], release: Path, tokenizer: type) -> None:
    """The disk is full when the tokenizer is written."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "save_pretrained", full)
        assert_refused(convert, release, OSError, "cannot write .*No space left.* Name a place with room")


def assert_the_commands_error_is_one_line(main: Callable, words: list[str], missing: Path, capsys) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(words)
    assert capsys.readouterr().err.partition(": ")[2] == f"error: {missing}: no such file\n"
