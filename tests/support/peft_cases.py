"""What tests of peft's prefix tuning need while peft does not know that transformers 5.24 renamed the cache."""

import inspect

import peft
import pytest
from packaging.version import parse
from transformers.integrations.peft import MIN_PEFT_VERSION


needs_the_peft_of_transformers = pytest.mark.skipif(
    parse(peft.__version__) < parse(MIN_PEFT_VERSION),
    reason=f"the installed transformers needs peft {MIN_PEFT_VERSION}",
)


def show_the_old_name(model_class: type, monkeypatch) -> None:
    """Lets peft give a prefix to a class of transformers.

    Since 5.24, these classes still take `past_key_values`, but do not list it, and peft 0.21 looks for it in the list.
    """
    signature = inspect.signature(model_class.forward)
    parameters = list(signature.parameters.values())
    names = [parameter.name for parameter in parameters]
    if "past_key_values" not in names:
        index = names.index("cache")
        parameters.insert(index, parameters[index].replace(name="past_key_values"))
    monkeypatch.setattr(model_class.forward, "__signature__", signature.replace(parameters=parameters), raising=False)
