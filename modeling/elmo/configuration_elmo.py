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
"""ELMo's configuration: the released `options.json`, the state and mix of its biLM, and its task networks."""

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import auto_docstring

from ..hub_code import SavedWithCode, announce_names, copy_code


# Which class each Auto class finds in a saved folder.
AUTO_MAP = {
    "AutoConfig": "configuration_elmo.ElmoConfig",
    "AutoModel": "modeling_elmo.ElmoModel",
    "AutoModelForPreTraining": "modeling_elmo_pretraining.ElmoForPreTraining",
    "AutoModelForTokenClassification": "modeling_elmo_tagger.ElmoForTokenClassification",
    "AutoModelForSequenceClassification": "modeling_elmo_classifier.ElmoForSequenceClassification",
    "AutoModelForMultipleChoice": "modeling_elmo_esim.ElmoForMultipleChoice",
    "AutoModelForQuestionAnswering": "modeling_elmo_bidaf.ElmoForQuestionAnswering",
}
# What `pipeline(model=...)` finds in the folder of a tagger, for which transformers' own pipeline does not do.
PIPELINE = "pipeline_elmo.ElmoTokenClassificationPipeline"
PIPELINES = {
    "token-classification": {
        "impl": PIPELINE,
        "pt": ["AutoModelForTokenClassification"],
        "type": "text",
    }
}
# The least that a model can have of each; 0 is none.
LEAST = {
    "max_characters_per_token": 3,  # begin, a byte and end
    "lm_vocab_size": 3,  # <S>, </S> and <UNK>
    **dict.fromkeys(("char_embedding_size", "cell_size", "num_hidden_layers", "num_mixes"), 1),
    **dict.fromkeys(("word_vector_size", "rnn_size", "rnn_layers", "classifier_size"), 1),
    **dict.fromkeys(("task_char_width", "task_char_embedding_size"), 1),
    **dict.fromkeys(("num_highway_layers", "num_sampled", "num_word_vectors", "task_char_filters", "mix_l2"), 0),
}


@auto_docstring(checkpoint="elmo-original-5.5B")
@strict
class ElmoConfig(SavedWithCode, PreTrainedConfig):
    r"""
    The defaults are the published model (Peters et al. 2018, arXiv 1802.05365, section 3.4; its options.json).

    vocab_size (`int`, *optional*, defaults to 262):
        Character ids: 256 bytes, begin and end of sentence and word, padding within a word, and 0 for no word.
    max_characters_per_token (`int`, *optional*, defaults to 50):
        Ids of a word, its begin and end marks included.
    char_embedding_size (`int`, *optional*, defaults to 16):
        Size of a character's embedding.
    filters (`list[list[int]]`, *optional*):
        (width in characters, how many) of each convolution over them.
    char_activation (`str`, *optional*, defaults to `"relu"`):
        After the maximum over a word's positions: relu or tanh.
    num_highway_layers (`int`, *optional*, defaults to 2):
        Highway layers over the convolutions.
    hidden_size (`int`, *optional*, defaults to 1024):
        Size of a layer's states, both directions side by side; each has half of it (the projection).
    cell_size (`int`, *optional*, defaults to 4096):
        LSTM cells of one direction of one layer.
    num_hidden_layers (`int`, *optional*, defaults to 2):
        Layers of the biLSTM. With the word layer, the model has one more.
    use_skip_connections (`bool`, *optional*, defaults to `True`):
        Whether each layer from the second on adds its input to its output.
    cell_clip (`float`, *optional*, defaults to 3.0):
        Cells are clipped to [-cell_clip, cell_clip] at each step; None: not.
    proj_clip (`float`, *optional*, defaults to 3.0):
        As `cell_clip`, of the projected outputs.
    hidden_dropout_prob (`float`, *optional*, defaults to 0.1):
        On the input of each LSTM layer and of the softmax, while the biLM itself trains.
    freeze_bilm (`bool`, *optional*, defaults to `True`):
        Whether the biLM stays as it was pre-trained and only the mix of its layers is learned. It then has no dropout
        either. `ElmoForPreTraining` trains it in any case.
    state (`str`, *optional*, defaults to `"warm"`):
        Where sentences start. "zero": from zeros. "warm": from the state that `ElmoModel.warm_up` has stored in the
        checkpoint, the same for every sentence (zeros before). "carry": from where the row of the batch before ended,
        as the released code does; the only one where a call depends on earlier ones.
    num_mixes (`int`, *optional*, defaults to 1):
        Scalar mixes of the layers.
    mix_top_layer_only (`bool`, *optional*, defaults to `False`):
        The top layer instead of a mix of all.
    mix_layer_norm (`bool`, *optional*, defaults to `False`):
        Whether layers are normalised before they are mixed.
    mix_dropout (`float`, *optional*, defaults to 0.5):
        On the mix, while training.
    mix_l2 (`float`, *optional*, defaults to 0.0):
        Times the squares of the mix weights before their softmax, it is added to the loss of the task networks.
    lm_vocab_size (`int`, *optional*, defaults to 793471):
        Words that `ElmoForPreTraining` predicts; the first are <S>, </S> and <UNK>.
    num_sampled (`int`, *optional*, defaults to 8192):
        Words of the sampled softmax, in training; 0: the full softmax.
    use_elmo (`bool`, *optional*, defaults to `True`):
        Whether a task network reads the biLM. Without, it is the papers' baseline.
    elmo_placement (`str`, *optional*, defaults to `"input"`):
        Where a task network reads the biLM: "input" of its first RNN, "output" of the RNN, "both" (two mixes), or
        "after_first_rnn", TagLM's.
    num_word_vectors (`int`, *optional*, defaults to 0):
        Rows of a task network's word vectors; 0: it has none. Row 0 is padding, row 1 unknown words.
    word_vector_size (`int`, *optional*, defaults to 100):
        Size of a word vector.
    freeze_word_vectors (`bool`, *optional*, defaults to `False`):
        Whether word vectors stay as they were read.
    task_char_filters (`int`, *optional*, defaults to 0):
        Filters of a task network's own character CNN; 0: it has none.
    task_char_width (`int`, *optional*, defaults to 3):
        Characters that one of these filters sees.
    task_char_embedding_size (`int`, *optional*, defaults to 16):
        Size of a character's embedding there.
    rnn_size (`int`, *optional*, defaults to 200):
        Cells of one direction of a task network's LSTMs.
    rnn_layers (`int`, *optional*, defaults to 2):
        LSTM layers of the tagger and the classifier.
    task_dropout (`float`, *optional*, defaults to 0.5):
        Of a task network: on the words it reads and what its layers pass on.
    classifier_size (`int`, *optional*, defaults to 512):
        Units between a task network's pooling and its scores.
    use_crf (`bool`, *optional*, defaults to `True`):
        Whether the tagger scores sequences of tags, or each tag alone.
    constrain_tags (`bool`, *optional*, defaults to `True`):
        Whether the CRF rules out sequences that the scheme of the tag names (IOB2 or BIOES) does not have.

    Raises:
        ValueError: for sizes that do not fit together.

    Example:

    ```python
    >>> from modeling import ElmoConfig, ElmoModel

    >>> model = ElmoModel(ElmoConfig(hidden_size=256, cell_size=1024, num_highway_layers=1))  # the released small one
    ```"""

    model_type = "elmo"
    keys_to_ignore_at_inference = ["mixes"]

    vocab_size: int = 262
    max_characters_per_token: int = 50
    char_embedding_size: int = 16
    filters: list[list[int]] | tuple = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    char_activation: Literal["relu", "tanh"] = "relu"
    num_highway_layers: int = 2
    hidden_size: int = 1024
    cell_size: int = 4096
    num_hidden_layers: int = 2
    use_skip_connections: bool = True
    cell_clip: float | int | None = 3.0
    proj_clip: float | int | None = 3.0
    hidden_dropout_prob: float | int = 0.1
    freeze_bilm: bool = True
    state: Literal["zero", "warm", "carry"] = "warm"
    num_mixes: int = 1
    mix_top_layer_only: bool = False
    mix_layer_norm: bool = False
    mix_dropout: float | int = 0.5
    mix_l2: float | int = 0.0
    lm_vocab_size: int = 793471
    num_sampled: int = 8192
    use_elmo: bool = True
    elmo_placement: Literal["input", "output", "both", "after_first_rnn"] = "input"
    num_word_vectors: int = 0
    word_vector_size: int = 100
    freeze_word_vectors: bool = False
    task_char_filters: int = 0
    task_char_width: int = 3
    task_char_embedding_size: int = 16
    rnn_size: int = 200
    rnn_layers: int = 2
    task_dropout: float | int = 0.5
    classifier_size: int = 512
    use_crf: bool = True
    constrain_tags: bool = True
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    @property
    def projection_size(self) -> int:
        """Size of one direction's states."""
        return self.hidden_size // 2

    def validate_sizes(self):
        """Each direction gets half of the hidden size; every filter fits into a word."""
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: it must be {least} or more.")
        for name in ("hidden_dropout_prob", "mix_dropout", "task_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: a probability is from 0 to 1.")
        for name in ("cell_clip", "proj_clip"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: it must be above 0; None clips nothing.")
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size={self.hidden_size} is odd, but its halves are the two directions' states.")
        wide = [
            list(pair)
            for pair in self.filters
            if len(pair) != 2 or min(pair) < 1 or pair[0] > self.max_characters_per_token
        ]
        if wide or not self.filters:
            raise ValueError(
                f"filters={self.filters}: each must be (width, count), no wider than "
                f"max_characters_per_token={self.max_characters_per_token}, and there must be one."
            )
        if self.use_elmo and self.elmo_placement == "both" and self.num_mixes < 2:
            raise ValueError(
                f'elmo_placement="both" reads two mixes, but num_mixes={self.num_mixes}; set num_mixes=2.'
            )

    def save_pretrained(self, save_directory, **kwargs):
        """As `PreTrainedConfig.save_pretrained`, and the code of all ELMo's classes beside it, so that
        `trust_remote_code=True` finds them in the folder where this package is not installed.
        """
        self.auto_map = copy_code(__file__, AUTO_MAP, save_directory, others=[PIPELINE])
        if self.architectures == ["ElmoForTokenClassification"]:
            self.custom_pipelines = PIPELINES
        super().save_pretrained(save_directory, **kwargs)


announce_names(AUTO_MAP)

__all__ = ["AUTO_MAP", "ElmoConfig"]
