"""BERT and GPT as parameters of one test: `cases` is bert_cases or gpt_cases, and `head` one of its heads."""

from collections.abc import Iterable
from types import ModuleType

import pytest
from transformers import PreTrainedModel

import modeling
from tests.support import bert_cases, gpt_cases


EACH_FAMILY = pytest.mark.parametrize("cases", [bert_cases, gpt_cases], ids=["bert", "gpt"])


def each(names: str, bert: Iterable, gpt: Iterable) -> pytest.MarkDecorator:
    """Parameters `cases` and `names`, such as "head", with a value, or a tuple of values, for each test of a model."""
    tests = [(bert_cases, "bert", values) for values in bert] + [(gpt_cases, "gpt", values) for values in gpt]
    parameters = []
    for cases, family, values in tests:
        values = values if isinstance(values, tuple) else (values,)
        parameters.append(pytest.param(cases, *values, id="-".join(map(str, (family, *values)))))
    return pytest.mark.parametrize(f"cases, {names}", parameters)


def class_of(cases: ModuleType, head: str) -> type[PreTrainedModel]:
    """Our class of a head, such as ZooBertForMaskedLM."""
    return getattr(modeling, cases.OURS + head)
