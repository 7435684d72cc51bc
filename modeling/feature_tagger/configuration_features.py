# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The configuration of a tagger on an encoder's states (Devlin et al. 2018, section 5.3)."""

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import auto_docstring

from ..hub_code import SavedWithCode, announce_names, copy_code


# The class that each Auto class finds in a saved folder.
AUTO_MAP = {
    "AutoConfig": "configuration_features.FeatureTaggerConfig",
    "AutoModelForTokenClassification": "modeling_features.FeatureTaggerForTokenClassification",
}

# The rows of table 7: the layers whose states the tagger reads, where layer 0 is the embeddings; the number of layers
# that an encoder needs for that; and whether the states are summed with learned weights or else concatenated.
LAYERS = {
    "embeddings": (slice(0, 1), 0, False),
    "second_to_last": (slice(-2, -1), 2, False),
    "last": (slice(-1, None), 1, False),
    "weighted_sum_last_four": (slice(-4, None), 4, True),
    "concat_last_four": (slice(-4, None), 4, False),
    "weighted_sum_all": (slice(1, None), 1, True),
}


@auto_docstring(
    custom_intro="""
    The configuration of a tagger that reads the states of another model. The defaults are the paper's best setting
    (Devlin et al. 2018, arXiv 1810.04805, section 5.3 and table 7).

    Raises `ValueError` for an encoder with fewer layers than `features` needs, and for an impossible size or
    dropout.
    """
)
@strict
class FeatureTaggerConfig(SavedWithCode, PreTrainedConfig):
    r"""
    encoder (`dict` or `PreTrainedConfig`, *optional*):
        The configuration of the encoder, of any family that `AutoModel` supports. Defaults to BERT-base.
    features (`str`, *optional*, defaults to `"concat_last_four"`):
        The layers of the encoder that the tagger reads: `"embeddings"`, `"second_to_last"`, `"last"`,
        `"weighted_sum_last_four"`, `"concat_last_four"`, or `"weighted_sum_all"` for all layers above the embeddings
        (the paper's "all 12 layers").
    rnn_size (`int`, *optional*, defaults to 384):
        Number of cells of one direction of the BiLSTM. The paper's BiLSTM is "768-dimensional", which is understood as
        the size of its output, both directions together.
    rnn_layers (`int`, *optional*, defaults to 2):
        Number of layers of the BiLSTM.
    dropout (`float`, *optional*, defaults to 0.1):
        The dropout before the BiLSTM, between its layers, and before the classifier. The paper does not mention any.
    freeze_encoder (`bool`, *optional*, defaults to `True`):
        Whether the encoder's weights get no gradients when the tagger is made or loaded. With `False` it is fine-tuned
        below the BiLSTM, as in the paper's "LTR & No NSP + BiLSTM" (table 5), whose encoder reads from left to right.

    Example:

    ```python
    >>> from transformers import AutoModel
    >>> from modeling import FeatureTaggerForTokenClassification

    >>> encoder = AutoModel.from_pretrained("google-bert/bert-base-cased")
    >>> model = FeatureTaggerForTokenClassification.from_encoder(encoder, features="last", num_labels=9)
    ```"""

    model_type = "feature-tagger"
    sub_configs = {"encoder": AutoConfig}

    encoder: dict | PreTrainedConfig | None = None
    features: Literal[
        "embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all"
    ] = "concat_last_four"
    rnn_size: int = 384
    rnn_layers: int = 2
    dropout: float | int = 0.1
    freeze_encoder: bool = True

    def __post_init__(self, **kwargs):
        if not isinstance(self.encoder, PreTrainedConfig):
            values = dict(self.encoder or {})
            self.encoder = AutoConfig.for_model(values.pop("model_type", "bert"), **values)
        super().__post_init__(**kwargs)

    def validate_sizes(self):
        """Checks that the BiLSTM has cells and layers, and that dropout leaves something of its input."""
        for name in ("rnn_size", "rnn_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1.")

    def validate_layers(self):
        """Checks that the encoder has the layers that `features` names."""
        required, available = LAYERS[self.features][1], self.encoder.num_hidden_layers
        if available < required:
            raise ValueError(
                f"features={self.features!r} needs an encoder of {required} layers, and this one has {available}; "
                f"choose among {', '.join(name for name, (_, layers, _) in LAYERS.items() if layers <= available)}."
            )

    def save_pretrained(self, save_directory, **kwargs):
        """As `PreTrainedConfig.save_pretrained`, and also copies the tagger's code into the folder.

        `trust_remote_code=True` then loads the tagger from the folder where this package is not installed, if its
        encoder is of a family that transformers has, such as BERT.
        """
        self.auto_map = copy_code(__file__, AUTO_MAP, save_directory)
        self.encoder._name_or_path = ""  # transformers removes the model's name, but not its encoder's
        super().save_pretrained(save_directory, **kwargs)


announce_names(AUTO_MAP)

__all__ = ["AUTO_MAP", "LAYERS", "FeatureTaggerConfig"]
