"""Opens files to read bytes, decompressed as the ends of their names say."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from elmo_gpt_bert.training.errors import FileError, MissingFileError, UserError
from elmo_gpt_bert.training.files import open_file


def _open_zstandard(file: BinaryIO) -> BinaryIO:
    import pyarrow  # the import takes a while, which other files do not need

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")


COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstandard}
DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)  # what the decompressors raise
BUFFER = 1 << 20  # bytes


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The content of a file. Raises OSError, in one line, if it cannot be opened or is damaged or cut short."""
    opener = COMPRESSED.get(path.suffix.lower())
    try:
        with open_file(path) as file, opener(file) if opener else nullcontext(file) as content:
            yield BufferedReader(content, BUFFER) if opener else content
    except UserError:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.strerror:  # missing, a folder, a device, not allowed
            kind = MissingFileError if isinstance(error, FileNotFoundError) else FileError
            raise kind(f"cannot read {path}: {error.strerror}") from error
        raise FileError(f"{path} is damaged or cut short ({error}): get it again") from error
